// A micro-batch of toy sequences as an attention exchange sees it, without a model and an executor.
#pragma once

#include "comm/group.h"
#include "nn/testing/context.h"
#include "step/batch_tables.h"
#include "support/toy_steps.h"

namespace hawser::testing {

// The batch of a layout's first step on this rank. `ctx` has its views.
class ExchangeBatch {
 public:
  ExchangeBatch(const plan::Layout& layout, const comm::MeshCoordinate& place, nn::testing::TestContext& ctx) {
    const ToySteps steps(layout, place, layout.batch.sequences * layout.data_ranks());
    bounds_ = layout.bounds;
    bounds_.random_numbers = bounds_.token_mask = true;
    host_ = steps.input(0).batches.front();
    ctx.batch_ = step::batch_views(bounds_, [&](std::size_t index) {
      const step::TableBuffer table = step::table_buffer(bounds_, index);
      const TensorView view = ctx.make(table.dtype, table.shape);
      if (view.empty()) return view;
      std::memset(view.raw(), 0, static_cast<std::size_t>(view.bytes()));
      step::table_contents(*host_, bounds_, index, [&](const void* data, std::int64_t bytes) {
        if (bytes > 0) std::memcpy(view.raw(), data, static_cast<std::size_t>(bytes));
      });
      return view;
    });
    step::set_host_tables(*host_, ctx.batch_);
    ctx.rows_ = bounds_.row_counts();
  }
  const step::BatchBounds& bounds() const { return bounds_; }

 private:
  step::BatchBounds bounds_;
  std::shared_ptr<const step::HostBatch> host_;
};

}  // namespace hawser::testing
