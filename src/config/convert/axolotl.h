// What is converted of axolotl's files beside the table of their keys. Internal to config/convert/.
#pragma once

#include <string>

#include "config/convert/conversion.h"

namespace hawser::convert {

void convert_axolotl_data(Conversion& conversion);

// data.chat_template of the name or text that is the value of `key`.
void convert_chat_template(Conversion& conversion, const std::string& key, const std::string& value);

}  // namespace hawser::convert
