// For tests: folders and programs of this build.
//
//   read_recipe(cat(testing::kSourceFolder, "/recipes/quickstart.yaml"), ...)
//
// They are variables of one generated source (tests/paths.cpp.in), not macros, so that all other objects are the same
// in every checkout and the compiler cache shares them. All are initialized before any constructor runs.
#pragma once

namespace hawser::testing {

extern const char* const kSourceFolder;  // the checkout
extern const char* const kHawser;        // the program `hawser`
extern const char* const kMpirun;
extern const char* const kTestRank;  // src/launch/testing/main.cpp
extern const char* const kFakeNvml;  // tests/support/fake_nvml.cpp: two GPUs
extern const bool kParquet;          // the build has libhawser_parquet.so
extern const char* const kOldNvml;   // the same with an old driver

}  // namespace hawser::testing
