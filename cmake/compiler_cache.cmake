# ccache, if it is there: its settings are in the launcher, so that every build on a machine shares one cache, whatever the
# checkout and the preset. Paths are relative in all that the compiler sees and writes, or they would be part of the key:
# in the command (CCACHE_BASEDIR), the working folder (CCACHE_NOHASHDIR), debug information and __FILE__ (prefix maps).
# CCACHE_DEPEND: headers are taken from the compiler's dependencies, so a miss costs no run of the preprocessor.
file(RELATIVE_PATH up ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR})
foreach(prefix ${CMAKE_SOURCE_DIR}/ ${up})
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${prefix}=>)
endforeach()
find_program(CCACHE ccache)
if(CCACHE)
  set(HAWSER_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
                               CCACHE_DEPEND=1 ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${HAWSER_COMPILER_LAUNCHER})
endif()
