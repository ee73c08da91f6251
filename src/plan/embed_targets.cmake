# Writes targets/*.yaml into one source file, so that the binary finds them without a path.
# cmake -DFOLDER=... -DOUTPUT=... -P embed_targets.cmake
file(GLOB names RELATIVE ${FOLDER} ${FOLDER}/*.yaml)
list(TRANSFORM names REPLACE "[.]yaml$" "")
list(SORT names)
set(text "// Made from targets/*.yaml by embed_targets.cmake.\n#include \"plan/shipped_targets.h\"\n\n")
string(APPEND text "namespace hawser::plan {\n\nstd::vector<std::pair<std::string_view, std::string_view>> ")
string(APPEND text "shipped_target_texts() {\n  return {\n")
foreach(name ${names})
  file(READ ${FOLDER}/${name}.yaml yaml)
  string(APPEND text "      {\"${name}\", R\"yaml(${yaml})yaml\"},\n")
endforeach()
string(APPEND text "  };\n}\n\n}  // namespace hawser::plan\n")
file(WRITE ${OUTPUT} "${text}")
