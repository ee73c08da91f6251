# What `cmake --install` installs, and the .deb package of cpack:
#
#   bin/hawser
#   lib/hawser/parquet/                     reads Parquet files; not with -DHAWSER_PARQUET=OFF
#   share/bash-completion/completions/hawser, share/zsh/vendor-completions/_hawser, share/fish/vendor_completions.d/
#   share/man/man1/hawser.1.gz
#   share/doc/hawser/                       licence, notices of other software, changelog
include(GNUInstallDirs)
set(documents ${CMAKE_BINARY_DIR}/documents)
set(doc ${CMAKE_INSTALL_DATAROOTDIR}/doc/hawser)
file(MAKE_DIRECTORY ${documents})

# Written by the program itself.
add_custom_command(OUTPUT ${documents}/hawser.bash ${documents}/_hawser ${documents}/hawser.fish ${documents}/hawser.1.gz
                   COMMAND $<TARGET_FILE:hawser> completion bash > ${documents}/hawser.bash
                   COMMAND $<TARGET_FILE:hawser> completion zsh > ${documents}/_hawser
                   COMMAND $<TARGET_FILE:hawser> completion fish > ${documents}/hawser.fish
                   COMMAND ${CMAKE_SOURCE_DIR}/packaging/man-page $<TARGET_FILE:hawser> ${documents}/hawser.1.gz
                   DEPENDS hawser ${CMAKE_SOURCE_DIR}/packaging/man-page VERBATIM)
add_custom_target(documents ALL DEPENDS ${documents}/hawser.bash)

install(TARGETS hawser RUNTIME)
install(FILES ${documents}/hawser.bash DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/bash-completion/completions
        RENAME hawser)
install(FILES ${documents}/_hawser DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/zsh/vendor-completions)
install(FILES ${documents}/hawser.fish DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/fish/vendor_completions.d)
install(FILES ${documents}/hawser.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${CMAKE_SOURCE_DIR}/packaging/debian/copyright DESTINATION ${doc})
if(TARGET hawser_parquet)
  set_target_properties(hawser_parquet PROPERTIES INSTALL_RPATH "\$ORIGIN")
  install(TARGETS hawser_parquet LIBRARY DESTINATION lib/hawser/parquet)
  install(FILES ${pyarrow_FOLDER}/pyarrow/libarrow.so.2600 ${pyarrow_FOLDER}/pyarrow/libparquet.so.2600
          DESTINATION lib/hawser/parquet)
endif()

# cpack -G DEB
string(TIMESTAMP today "%a, %d %b %Y 00:00:00 +0000" UTC)
configure_file(${CMAKE_SOURCE_DIR}/packaging/debian/changelog.in ${documents}/changelog)
file(ARCHIVE_CREATE OUTPUT ${documents}/changelog.gz PATHS ${documents}/changelog FORMAT raw COMPRESSION GZip
     COMPRESSION_LEVEL 9)
install(FILES ${documents}/changelog.gz DESTINATION ${doc})
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME hawser)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "Hawser <maintainers@hawser.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains transformer language models on long sequences")
set(CPACK_PACKAGE_DESCRIPTION "Hawser trains transformer language models on sequences of 8K to 1M tokens over many
devices: sharded data, tensor, pipeline and context parallelism, LoRA and QLoRA, data
preparation, checkpoints and export to Hugging Face folders. Memory is planned before the run.
This package has the device of CPUs.")
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "openmpi-bin")  # libmpi and mpirun are found at run time
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libcurl4")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
include(CPack)

# The program of the wheel (packaging/build-wheel): the same objects, for libraries of manylinux_2_34.
add_executable(hawser_wheel EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/src/cli/main.cpp
               ${CMAKE_SOURCE_DIR}/packaging/wheel/condition_variable.cpp)
target_link_libraries(hawser_wheel PRIVATE hawser_cli)
set_target_properties(hawser_wheel PROPERTIES OUTPUT_NAME hawser RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/wheel
                      SKIP_BUILD_RPATH ON)
