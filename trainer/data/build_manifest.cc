#include "trainer/data/build_manifest.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "common/base/json_text.h"
#include "trainer/storage/json_problem.h"

namespace sortie::trainer {
using OrderedJson = nlohmann::ordered_json;

std::string to_json(const BuildManifest& manifest) {
  OrderedJson parts = OrderedJson::array();
  for (const BuildManifestPart& part : manifest.parts)
    parts.push_back({{"name", part.name},
                     {"documents", part.documents},
                     {"tokens", part.tokens},
                     {"bin_sha256", part.bin_sha256},
                     {"idx_sha256", part.idx_sha256},
                     {"max_id", part.max_id}});
  OrderedJson root = {{"format", "sortie-data"},
                      {"version", 1},
                      {"tokenizer", manifest.tokenizer},
                      {"tokenizer_sha256", manifest.tokenizer_sha256},
                      {"vocabulary_sha256", manifest.vocabulary_sha256},
                      {"vocab_size", manifest.vocab_size},
                      {"eod_id", nullptr},
                      {"append_eod", manifest.append_eod},
                      {"add_special_tokens", manifest.add_special_tokens},
                      {"token_type", manifest.token_type},
                      {"text_bytes", manifest.text_bytes},
                      {"files", manifest.files},
                      {"left_out_documents", manifest.left_out_documents},
                      {"left_out_bytes", manifest.left_out_bytes},
                      {"parts", parts}};
  if (manifest.eod_id) root["eod_id"] = *manifest.eod_id;
  return json_text(root, 2) + "\n";
}

Result<BuildManifest> parse_build_manifest(std::string_view text, std::string_view where) {
  std::string_view at;  // the member being read
  const auto member = [&at](const OrderedJson& object, const char* key) -> const OrderedJson& {
    at = {};
    const OrderedJson& found = object.at(key);
    at = key;
    return found;
  };
  // The library reports errors by exceptions. None leaves this function.
  try {
    const OrderedJson root = OrderedJson::parse(text);
    if (member(root, "format") != "sortie-data" || member(root, "version") != 1)
      return fail(ErrorCode::data, fmt::format("{}: not a data manifest of version 1", where));
    BuildManifest manifest;
    member(root, "tokenizer").get_to(manifest.tokenizer);
    member(root, "tokenizer_sha256").get_to(manifest.tokenizer_sha256);
    manifest.vocabulary_sha256 = root.value("vocabulary_sha256", "");  // missing in older files
    member(root, "vocab_size").get_to(manifest.vocab_size);
    if (!member(root, "eod_id").is_null()) manifest.eod_id = root.at("eod_id").get<std::int32_t>();
    member(root, "append_eod").get_to(manifest.append_eod);
    manifest.add_special_tokens =
        root.value("add_special_tokens", false);  // missing in older files
    member(root, "token_type").get_to(manifest.token_type);
    member(root, "text_bytes").get_to(manifest.text_bytes);
    member(root, "files").get_to(manifest.files);
    manifest.left_out_documents = root.value("left_out_documents", std::uint64_t{0});
    manifest.left_out_bytes = root.value("left_out_bytes", std::uint64_t{0});
    for (const OrderedJson& part : member(root, "parts"))
      manifest.parts.push_back(
          {member(part, "name").get<std::string>(), member(part, "documents").get<std::uint64_t>(),
           member(part, "tokens").get<std::uint64_t>(),
           member(part, "bin_sha256").get<std::string>(),
           member(part, "idx_sha256").get<std::string>(), part.value("max_id", std::int64_t{-1})});
    return manifest;
  } catch (const OrderedJson::exception& error) {
    return fail(ErrorCode::data,
                fmt::format("{}: not a data manifest: {}{}; build the token files again with "
                            "`sortie-train data build`, or move this file away",
                            where, at.empty() ? "" : fmt::format("\"{}\": ", at),
                            json_problem(error, text)));
  }
}

namespace {

/// Returns nullopt if there is no such file.
Result<std::optional<BuildManifest>> read_manifest(const std::string& path) {
  auto content = read_file(path);
  if (!content && content.error().code == ErrorCode::not_found) return std::nullopt;
  if (!content) return std::unexpected(std::move(content).error());
  return parse_build_manifest(*content, path);
}

std::vector<std::string> names_of(const BuildManifest& manifest) {
  std::vector<std::string> names;
  for (const BuildManifestPart& part : manifest.parts) names.push_back(part.name);
  return names;
}

}  // namespace

const BuildManifestPart* part_of(const BuildManifest& manifest, const std::string& prefix) {
  const std::string name = std::filesystem::path(prefix).filename().string();
  const auto found = std::ranges::find(manifest.parts, name, &BuildManifestPart::name);
  return found == manifest.parts.end() ? nullptr : &*found;
}

Result<std::optional<BuildManifest>> find_build_manifest(const std::string& prefix) {
  const std::string name = std::filesystem::path(prefix).filename().string();
  {
    const std::string path = prefix + ".json";
    SORTIE_ASSIGN_OR_RETURN(auto manifest, read_manifest(path));
    if (manifest && part_of(*manifest, prefix) == nullptr) {
      if (manifest->parts.size() != 1)
        return fail(ErrorCode::data,
                    fmt::format("{}: it is the manifest of {}, and not of {}; name one of these, "
                                "or build the token files again",
                                path, fmt::join(names_of(*manifest), ", "), name));
      manifest->parts.front().name = name;
    }
    if (manifest) return manifest;
  }
  for (const std::string_view suffix : {"-train", "-validation"}) {
    if (!prefix.ends_with(suffix)) continue;
    SORTIE_ASSIGN_OR_RETURN(
        auto manifest, read_manifest(prefix.substr(0, prefix.size() - suffix.size()) + ".json"));
    if (!manifest || part_of(*manifest, prefix) != nullptr) return manifest;
    // A single part is that of the whole output: these files were not built with it.
    for (BuildManifestPart& part : manifest->parts)
      if (manifest->parts.size() > 1 && part.name.ends_with(suffix)) {
        part.name = name;
        return manifest;
      }
  }
  return std::nullopt;
}

}  // namespace sortie::trainer
