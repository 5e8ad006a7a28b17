// Fuzzes read_hf_config() with a config.json. An accepted model is written back as the same model,
// into the JSON that was read and into a new one.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "common/base/check.h"
#include "common/config/load.h"
#include "trainer/hf/config_json.h"

namespace {

std::string text_of(const sortie::config::ModelConfig& model) {
  sortie::config::JobConfig job;
  job.model = model;
  return sortie::config::to_toml(job);
}

/// Writes to text and parses it: numbers in memory have types that the text does not preserve.
nlohmann::json through_text(const nlohmann::json& json) {
  return nlohmann::json::parse(json.dump());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sortie::trainer;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return 0;
  const auto model = read_hf_config(json, "config.json");
  if (!model) {
    SORTIE_CHECK(model.error().message.starts_with("config.json: "), "{}", model.error().message);
    return 0;
  }
  if (!write_hf_config(*model, json)) return 0;  // transformers has no such model
  const auto again = read_hf_config(through_text(json), "again");
  SORTIE_CHECK(again.has_value(), "{}", again ? "" : again.error().message);
  SORTIE_CHECK(text_of(*again) == text_of(*model), "{}\n{}", text_of(*model), text_of(*again));
  nlohmann::json fresh;
  SORTIE_CHECK(write_hf_config(*model, fresh).has_value());
  const auto anew = read_hf_config(through_text(fresh), "fresh");
  SORTIE_CHECK(anew.has_value(), "{}", anew ? "" : anew.error().message);
  return 0;
}
