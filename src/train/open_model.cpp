#include "train/open_model.h"

#include <filesystem>

#include "models/families.h"
#include "models/weights.h"

namespace hawser::train {

OpenModel open_model(const ModelRecipe& recipe, const std::string& folder, Problems& problems) {
  const bool from_scratch = recipe.path.empty();
  const std::string& named = from_scratch ? recipe.config : recipe.path;
  const std::filesystem::path path = std::filesystem::path(named).is_absolute() || folder.empty()
                                         ? std::filesystem::path(named)
                                         : std::filesystem::path(folder) / named;
  const std::size_t before = problems.size();
  models::ModelDescription description = models::read_description(path.string(), problems);
  OpenModel open;
  const bool described = problems.size() == before;
  if (described) open.model = std::make_unique<models::Model>(std::move(description));
  std::error_code error;
  if (!from_scratch && std::filesystem::exists(path, error)) {
    open.weights = checkpoint::SafetensorsFolder::open(path.string(), problems);
    if (open.weights && described) models::check_weights(*open.model, *open.weights, problems);
  }
  return open;
}

std::unique_ptr<data::Tokenizer> tokenizer_beside(const std::string& model_folder) {
  const std::filesystem::path path = std::filesystem::path(model_folder) / "tokenizer.json";
  std::error_code error;
  return std::filesystem::exists(path, error) ? data::load_tokenizer(path.string()) : nullptr;
}

DType compute_dtype(const PrecisionRecipe& recipe, DeviceKind) {
  return recipe.compute == ComputePrecision::bf16 ? DType::bf16 : DType::f32;
}

}  // namespace hawser::train
