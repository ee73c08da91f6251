// The tables of a micro-batch by name: what the host gives, how large the device's buffer is, and where layers see it.
//
// A new table is a member of HostBatch, a member of nn::BatchViews and a row in batch_tables.cpp. Its shape may have an
// entry for each token row (BatchBounds::rows), for each sequence (BatchBounds::sequences) or for each segment.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "nn/layer.h"
#include "step/batch.h"
#include "tensor/tensor.h"

namespace hawser::step {

struct BatchTable {
  using Give = std::function<void(const void* data, std::int64_t bytes)>;

  const char* name = "";  // "labels"
  DType dtype = DType::i32;
  Shape (*shape)(const BatchBounds& bounds) = nullptr;  // of the buffer; no elements: the table is not used
  // Calls `give` once with the table's contents: at most the bytes of the buffer.
  void (*contents)(const HostBatch& batch, const BatchBounds& bounds, const Give& give) = nullptr;
  TensorView nn::BatchViews::*view = nullptr;
};

// All tables. The index is the buffer's (BufferKey of Role::batch).
std::span<const BatchTable> batch_tables();

// The views of a micro-batch. `table_of`: the buffer of a table, with its shape.
nn::BatchViews batch_views(const BatchBounds& bounds, const std::function<TensorView(const BatchTable&)>& table_of);
// Sets what the views have of the tables' contents on the host, which outlives them.
void set_host_tables(const HostBatch& host, nn::BatchViews& views);

}  // namespace hawser::step
