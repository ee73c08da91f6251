# libhawser_parquet.so, which reads Parquet files (prepare/parquet_plugin.h), in the folder parquet/ of the build, with the
# two libraries of Arrow that it is linked to. They and their headers come from PyPI's wheel of pyarrow. Only this target
# sees them: `hawser` loads the plug-in when it reads such a file.
set(FETCH_WHEEL_HINT ", or build without Parquet: -DHAWSER_PARQUET=OFF")
fetch_wheel(pyarrow 26.0.1 pyarrow/libparquet.so.2600
            "pyarrow/include/arrow/*" "pyarrow/include/parquet/*" "pyarrow/libarrow.so.2600" "pyarrow/libparquet.so.2600")
unset(FETCH_WHEEL_HINT)
set(parquet_folder ${CMAKE_BINARY_DIR}/parquet)
file(MAKE_DIRECTORY ${parquet_folder})
foreach(library libarrow.so.2600 libparquet.so.2600)
  file(CREATE_LINK ${pyarrow_FOLDER}/pyarrow/${library} ${parquet_folder}/${library} COPY_ON_ERROR)
endforeach()

add_library(hawser_parquet MODULE ${CMAKE_SOURCE_DIR}/src/prepare/parquet_plugin.cpp)
target_include_directories(hawser_parquet PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_include_directories(hawser_parquet SYSTEM PRIVATE ${pyarrow_FOLDER}/pyarrow/include)
target_link_libraries(hawser_parquet PRIVATE ${parquet_folder}/libparquet.so.2600 ${parquet_folder}/libarrow.so.2600)
# It finds Arrow beside itself, whatever LD_LIBRARY_PATH has.
set_target_properties(hawser_parquet PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${parquet_folder}
                      BUILD_RPATH "\$ORIGIN" BUILD_RPATH_USE_ORIGIN ON)
target_link_options(hawser_parquet PRIVATE LINKER:--disable-new-dtags)
if(HAWSER_SANITIZE)
  target_compile_options(hawser_parquet PRIVATE -fno-sanitize=vptr)  # Arrow's classes are not instrumented
else()
  # A compiler with another ABI of C++ than Arrow's libraries fails here.
  target_link_options(hawser_parquet PRIVATE LINKER:--no-undefined)
endif()
