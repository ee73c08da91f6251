// `Groups`: the learning-rate groups of an optimizer (nn::FlatSpec::group) and their weight decays.
#pragma once

#include <vector>

#include "nn/flat.h"
#include "optim/optimizer.h"

namespace hawser::optim {

struct Groups {
  int count = 1;  // flats of a FlatSpec::group below it have the learning rate of their group, others that of group 0
  double weight_decay = 0;
  std::vector<double> decays = {};  // by FlatSpec::group, in place of weight_decay; of the others, weight_decay

  int of(const nn::Flat& flat) const { return flat.spec().group < count ? flat.spec().group : 0; }
  double decay_of(const nn::Flat& flat) const {
    const auto group = static_cast<std::size_t>(of(flat));
    return group < decays.size() ? decays[group] : weight_decay;
  }
};

// InternalError unless Groups::count is in [1, kGroups].
inline void check_groups(const Groups& groups) {
  HAWSER_CHECK(groups.count >= 1 && groups.count <= kGroups, groups.count, " groups of an optimizer");
}

}  // namespace hawser::optim
