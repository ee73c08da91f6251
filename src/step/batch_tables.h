// The tables of a micro-batch by name: what the host gives, how large the device's buffer is, and where layers see it.
//
// Every micro-batch has the fixed tables: a member of HostBatch, a member of nn::BatchViews and a row in
// batch_tables.cpp each. A model may declare others (BatchBounds::tables), which need none of these: the data have them
// by name (batches::Sequence::tables), and layers read them by name (nn::BatchViews::table).
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

// The fixed tables.
std::span<const BatchTable> batch_tables();

// All tables of a micro-batch: the fixed ones, then those of BatchBounds::tables. The index of a table is its buffer's
// (BufferKey of Role::batch).
std::size_t table_count(const BatchBounds& bounds);
struct TableBuffer {
  DType dtype = DType::i32;
  Shape shape;  // no elements: the table is not used
};
TableBuffer table_buffer(const BatchBounds& bounds, std::size_t index);
// BatchTable::contents. InternalError if a declared table is missing, or has another dtype or number of elements.
void table_contents(const HostBatch& batch, const BatchBounds& bounds, std::size_t index, const BatchTable::Give& give);

// The views of a micro-batch. `view_of`: the buffer of a table, with its shape.
nn::BatchViews batch_views(const BatchBounds& bounds, const std::function<TensorView(std::size_t index)>& view_of);
// Sets what the views have of the tables' contents on the host, which outlives them.
void set_host_tables(const HostBatch& host, nn::BatchViews& views);

}  // namespace hawser::step
