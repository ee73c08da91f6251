// Network interfaces through which MPI and NCCL would not reach other hosts.
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/cat.h"
#include "base/text.h"
#include "cli/doctor/findings.h"

namespace hawser::cli::checks {
namespace {

namespace fs = std::filesystem;

// Known by conventional names, or by the kernel.
bool is_virtual(const std::string& name) {
  for (const char* start : {"docker", "br-", "virbr", "veth", "vmnet", "vboxnet", "cni", "flannel", "cali", "lxc",
                            "lxdbr", "podman", "tun", "tap", "wg", "tailscale", "zt", "kube", "weave"}) {
    if (name.starts_with(start)) return true;
  }
  std::error_code ignored;
  const fs::path device = fs::path("/sys/class/net") / name;
  return fs::exists(device / "bridge", ignored) || fs::exists(device / "tun_flags", ignored);
}

}  // namespace

void check_network(Findings& out) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    return out.warn("network", "interfaces cannot be listed", "links to other hosts are unknown",
                    "look at the output of ip address");
  }
  std::set<std::string> real, virtual_names;
  bool loopback = false;
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    const bool ip = at->ifa_addr != nullptr && at->ifa_addr->sa_family == AF_INET;
    if (!ip || (at->ifa_flags & IFF_UP) == 0) continue;
    if ((at->ifa_flags & IFF_LOOPBACK) != 0) {
      loopback = true;
    } else {
      (is_virtual(at->ifa_name) ? virtual_names : real).insert(at->ifa_name);
    }
  }
  freeifaddrs(first);
  if (!loopback) {
    out.problem("loopback", "is down", "ranks of one machine connect over it", "ip link set lo up");
  }
  if (!virtual_names.empty()) {
    out.warn("network", cat(real.empty() ? "" : joined(real, ",") + ", and virtual ", joined(virtual_names, ",")),
             "runs over several hosts may try the virtual ones and hang; runs on one host do not use them",
             real.empty()
                 ? "for several hosts, name one: OMPI_MCA_btl_tcp_if_include, NCCL_SOCKET_IFNAME"
                 : cat("for several hosts: OMPI_MCA_btl_tcp_if_include=", joined(real, ","),
                       " OMPI_MCA_oob_tcp_if_include=", joined(real, ","), " NCCL_SOCKET_IFNAME=", joined(real, ",")));
  } else {
    out.ok("network", real.empty() ? "loopback only" : joined(real, ","),
           real.empty() ? "enough for runs on this host" : "no virtual interfaces");
  }
}

}  // namespace hawser::cli::checks
