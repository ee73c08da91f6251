// What a layout keeps in host memory, and which layers run in tiles, in words.
//
//   offload_text(layout, model)                    // "activations of 32 blocks, 9% of the optimizer state"
//   useless_offload(recipe, DeviceKind::cpu)       // a warning: on a CPU, host and device memory are one
#pragma once

#include <string>

#include "config/recipe.h"
#include "device/device.h"
#include "models/model.h"
#include "plan/layout.h"

namespace hawser::plan {

// Empty if all is on the device. Master weights are a part of the optimizer's state.
std::string offload_text(const Layout& layout, const models::Model& model);

// A warning about keys of memory offload that have no effect on the device; empty if there are none.
std::string useless_offload(const Recipe& recipe, DeviceKind device);

// "MLPs in tiles of 8,192 rows"; empty if no layer runs in tiles.
std::string tiles_text(const Layout& layout, const models::Model& model);
// A warning about memory.mlp_tile_rows if it has no effect on the model; otherwise empty.
std::string useless_tiles(const Recipe& recipe, const models::Model& model);

}  // namespace hawser::plan
