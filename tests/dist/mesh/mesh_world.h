// The ranks that run a test of tests/dist/mesh, all of them through each case.
#pragma once

#include "comm/mpi/world.h"

namespace hawser {

extern comm::World* the_world;

}  // namespace hawser
