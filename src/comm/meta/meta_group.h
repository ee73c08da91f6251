// `MetaGroup`: one member of a group without peers; checks and records like a real group, on meta streams only.
#pragma once

#include <string>

#include "base/error.h"
#include "comm/group.h"

namespace hawser::comm {

class MetaGroup : public Group {
 public:
  MetaGroup(std::string name, int size, int index) : Group(std::move(name), size, index) {}

 protected:
  Work all_gather_work(const TensorView&, const TensorView&) override { return none(); }
  Work reduce_scatter_work(const TensorView&, const TensorView&, bool, const TensorView&) override { return none(); }
  Work all_reduce_work(const TensorView&, Reduction, const TensorView&) override { return none(); }
  Work all_to_all_work(const TensorView&, const TensorView&) override { return none(); }
  Work all_to_all_v_work(const CountedRows&, const CountedRows&, std::int64_t, const TensorView&) override {
    return none();
  }
  Work broadcast_work(const TensorView&, int) override { return none(); }
  Work send_work(const TensorView&, int) override { return none(); }
  Work receive_work(const TensorView&, int) override { return none(); }
  Work exchange_work(const TensorView&, int, const TensorView&, int) override { return none(); }
  Work barrier_work() override { return none(); }

 private:
  // Meta streams drop the work; on any other stream it throws when it runs.
  Work none() const {
    return [name = name()](const CudaNative*) {
      HAWSER_CHECK(false, "the meta group ", name, " was used on a stream that runs work");
    };
  }
};

}  // namespace hawser::comm
