# Writes targets/*.yaml into one source file, so that the binary finds them without a path.
# cmake -DFOLDER=... -DOUTPUT=... -P embed_targets.cmake
file(GLOB files ${FOLDER}/*.yaml)
list(SORT files)
set(text "// Made from targets/*.yaml by embed_targets.cmake.\n#include \"plan/shipped_targets.h\"\n\n")
string(APPEND text "namespace hawser::plan {\n\nstd::vector<std::pair<std::string_view, std::string_view>> ")
string(APPEND text "shipped_target_texts() {\n  return {\n")
foreach(file ${files})
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} yaml)
  string(APPEND text "      {\"${name}\", R\"yaml(${yaml})yaml\"},\n")
endforeach()
string(APPEND text "  };\n}\n\n}  // namespace hawser::plan\n")
file(WRITE ${OUTPUT} "${text}")
