// `parquet_plugin`: the plug-in that reads Parquet files, loaded at the first use.
//
// It is in the folder parquet/ beside the running program, with Arrow's libraries, as the build puts it there:
//
//   build/release/hawser
//   build/release/parquet/libhawser_parquet.so  libarrow.so.2600  libparquet.so.2600
#pragma once

#include <string>

#include "prepare/parquet_plugin.h"

namespace hawser::prepare {

// UserError, with one line, if the plug-in or a library of Arrow is missing, of another version or of another build. A
// later call tries again.
const ParquetPlugin& parquet_plugin();

// The folder in which parquet_plugin() looks.
std::string parquet_folder();

}  // namespace hawser::prepare
