// `rank_list`: ranks in a few characters, for names and messages.
#pragma once

#include <span>
#include <string>

namespace hawser::comm {

// {0,1,2,3} "0-3"; {0,4,8} "0-8:4" (first-last:step); {0,1,4,5} "0-1,4-5"; {3} "3". Different lists give different
// texts.
std::string rank_list(std::span<const int> ranks);

}  // namespace hawser::comm
