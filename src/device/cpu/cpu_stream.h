// `make_cpu_stream`: a stream of the cpu device by itself, for a device whose host computes (Device::make_host_stream).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "device/device.h"

namespace hawser {

std::unique_ptr<Stream> make_cpu_stream(const std::string& name, const CpuOptions& options);

// Enqueues `call` on a stream of make_cpu_stream. It runs after a failure of the stream, too, as events do.
void call_always(Stream& stream, std::function<void()> call);

}  // namespace hawser
