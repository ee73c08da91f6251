// What is converted of LLaMA-Factory's files beside the table of their keys. Internal to config/convert/.
#pragma once

#include "config/convert/conversion.h"

namespace hawser::convert {

void convert_llama_factory_data(Conversion& conversion);

}  // namespace hawser::convert
