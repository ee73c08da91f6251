// `Direction`: of what pipeline stages send to each other.
#pragma once

namespace hawser {

enum class Direction {
  forward,   // activations, to the stage of the next layers
  backward,  // gradients, to the stage of the layers before
};
constexpr const char* to_string(Direction direction) {
  return direction == Direction::forward ? "forward" : "backward";
}

}  // namespace hawser
