// `Bf16Units`: the CPU's instructions that multiply bf16 numbers and add the products in float32.
#pragma once

namespace hawser::ops {

enum class Bf16Units {
  none,
  avx512_bf16,  // vdpbf16ps
  amx,          // tdpbf16ps, on tiles of 16 rows
};

// Of this CPU at the vector level in use: none below avx512. The first call asks the kernel for permission to use AMX.
Bf16Units best_bf16_units();
Bf16Units bf16_units();                // in use: the best ones, unless a test set others
void set_bf16_units(Bf16Units units);  // tests; at most those of this CPU

}  // namespace hawser::ops
