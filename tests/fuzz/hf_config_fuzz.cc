// Any text as a config.json of a model folder: refused with the place, or a model that is written
// back as the same model, over what was read and into a file of its own.
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

/// As a file is written and read: numbers in memory have kinds that the text has not.
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
  if (!write_hf_config(*model, json)) return 0;  // of transformers has no such model
  const auto again = read_hf_config(through_text(json), "again");
  SORTIE_CHECK(again.has_value(), "{}", again ? "" : again.error().message);
  SORTIE_CHECK(text_of(*again) == text_of(*model), "{}\n{}", text_of(*model), text_of(*again));
  nlohmann::json fresh;
  SORTIE_CHECK(write_hf_config(*model, fresh).has_value());
  const auto anew = read_hf_config(through_text(fresh), "fresh");
  SORTIE_CHECK(anew.has_value(), "{}", anew ? "" : anew.error().message);
  return 0;
}
