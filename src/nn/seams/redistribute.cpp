#include "nn/seams/redistribute.h"

#include "nn/layer.h"
#include "ops/copy/add.h"

namespace hawser::nn {

namespace {

class LocalRows : public Redistribute::Gather {
 public:
  explicit LocalRows(const Scaled& x) : x_(x) {}
  int pieces() const override { return 1; }
  RowPiece wait(int) override { return {x_, 0}; }
  Scaled all() override { return x_; }

 private:
  Scaled x_;
};

class LocalSum : public Redistribute::Sum {
 public:
  LocalSum(LayerContext& ctx, const TensorView& y, const TensorView& residual)
      : ctx_(ctx), y_(y), residual_(residual) {}
  int pieces() const override { return 1; }
  RowTarget target(int) override { return {y_, 0}; }
  void written(int) override {}
  void finish() override {
    if (!residual_.empty()) ops::add(ctx_.compute(), {.a = y_, .b = residual_, .y = y_});
  }

 private:
  LayerContext& ctx_;
  TensorView y_, residual_;
};

}  // namespace

std::unique_ptr<Redistribute::Gather> Redistribute::gather(LayerContext&, const Scaled& x, Rows) {
  return std::make_unique<LocalRows>(x);
}

std::unique_ptr<Redistribute::Sum> Redistribute::sum(LayerContext& ctx, const TensorView& y, const TensorView& residual,
                                                     Order) {
  return std::make_unique<LocalSum>(ctx, y, residual);
}

}  // namespace hawser::nn
