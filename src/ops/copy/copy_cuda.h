// CUDA backend of copy, cast, fill, add, gather_rows and scatter_rows. Arguments are already checked.
#pragma once

#include "ops/copy/add.h"
#include "ops/copy/copy.h"
#include "ops/copy/permute_rows.h"

namespace hawser::ops::cuda {

void copy(const CudaNative& native, const Copy& args);
void cast(const CudaNative& native, const Cast& args);
void fill(const CudaNative& native, const Fill& args);
void add(const CudaNative& native, const Add& args);
void gather_rows(const CudaNative& native, const GatherRows& args);
void scatter_rows(const CudaNative& native, const ScatterRows& args);

}  // namespace hawser::ops::cuda
