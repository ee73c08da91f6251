// CPU backend of copy, cast, fill, add, gather_rows and scatter_rows. Arguments are already checked.
#pragma once

#include "ops/copy/add.h"
#include "ops/copy/copy.h"
#include "ops/copy/permute_rows.h"

namespace hawser::ops::cpu {

void copy(const Copy& args);
void cast(const Cast& args);
void fill(const Fill& args);
void add(const Add& args);
void gather_rows(const GatherRows& args);
void scatter_rows(const ScatterRows& args);

}  // namespace hawser::ops::cpu
