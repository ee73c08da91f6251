// The staging area of posix_storage.h. Only posix_storage.cpp includes this.
#pragma once

#include <memory>
#include <string>

#include "checkpoint/storage.h"

namespace hawser::checkpoint {

std::unique_ptr<Staging> stage_folder(const std::string& path, const std::string& owner, std::int64_t bytes);
std::unique_ptr<Staging> join_folder(const std::string& path, const std::string& ticket);

// Removes PATH, renamed before its files go.
void remove_folder(const std::string& path);

// The same without renaming it: the manifest first, so that a crash leaves a folder that is no complete checkpoint.
void remove_folder_in_place(const std::string& path);

}  // namespace hawser::checkpoint
