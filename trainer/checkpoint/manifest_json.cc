// Manifests and shard reports as JSON; README.md shows one.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/base/json_text.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/storage/json_problem.h"

namespace sortie::trainer {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kFormat = "sortie-checkpoint";
constexpr int kVersion = 1;

/// Writes a piece; the whole tensor needs no keys.
void put_piece(OrderedJson& json, const Piece& piece, const Dims& shape) {
  if (piece.covers(shape)) return;
  if (piece.offset != Dims(shape.size(), 0) || piece.extent != shape) {
    json["offset"] = piece.offset;
    json["extent"] = piece.extent;
  }
  const auto elements = num_elements(piece.extent);
  if (piece.begin != 0 || piece.end != elements) json["interval"] = {piece.begin, piece.end};
}

OrderedJson list_files(const std::vector<Manifest::File>& files) {
  OrderedJson list = OrderedJson::array();
  for (const Manifest::File& file : files)
    list.push_back({{"file", file.file}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  return list;
}

/// Reads an integer strictly: the library would silently convert a fraction or a boolean.
template <class T>
T integer(const OrderedJson& json) {
  if (!json.is_number_integer())
    throw OrderedJson::other_error::create(501, "not an integer", &json);
  if constexpr (std::is_unsigned_v<T>) {
    if (!json.is_number_unsigned())
      throw OrderedJson::other_error::create(501, "a negative number", &json);
  } else {
    if (json.is_number_unsigned() && json.get<std::uint64_t>() > (std::uint64_t{1} << 63) - 1)
      throw OrderedJson::other_error::create(501, "a number over 2^63", &json);
  }
  return json.get<T>();
}

Dims get_dims(const OrderedJson& json) {
  if (!json.is_array()) throw OrderedJson::other_error::create(501, "not a list of sizes", &json);
  Dims dims;
  for (const OrderedJson& size : json) dims.push_back(integer<std::int64_t>(size));
  return dims;
}

Piece get_piece(const OrderedJson& json, const Dims& shape) {
  Piece piece{Dims(shape.size(), 0), shape, 0, 0};
  if (json.contains("offset")) {
    piece.offset = get_dims(json.at("offset"));
    piece.extent = get_dims(json.at("extent"));
  }
  const auto elements = num_elements(piece.extent);
  if (!elements) throw OrderedJson::other_error::create(501, "an impossible extent", &json);
  piece.end = *elements;
  if (json.contains("interval")) {
    piece.begin = integer<std::int64_t>(json.at("interval").at(0));
    piece.end = integer<std::int64_t>(json.at("interval").at(1));
  }
  if (const std::string problem = piece_problem(piece, shape); !problem.empty())
    throw OrderedJson::other_error::create(501, problem, &json);
  return piece;
}

StorageType get_type(const OrderedJson& json) {
  const auto type = storage_from_name(json.get<std::string>());
  if (!type) throw OrderedJson::other_error::create(501, "an unknown dtype", &json);
  return *type;
}

Manifest::File get_file(const OrderedJson& json) {
  Manifest::File file{.file = json.at("file").get<std::string>(),
                      .bytes = integer<std::uint64_t>(json.at("bytes")),
                      .sha256 = json.at("sha256").get<std::string>()};
  const std::filesystem::path path(file.file);
  if (path.empty() || path.is_absolute() || std::ranges::find(path, "..") != path.end())
    throw OrderedJson::other_error::create(501, "a file outside the checkpoint", &json);
  return file;
}

/// Runs `read` on the parsed text; converts every exception of the library to an Error.
template <class Read>
auto read_json(std::string_view text, std::string_view where, Read read)
    -> Result<decltype(read(std::declval<const OrderedJson&>()))> {
  try {
    const OrderedJson root = OrderedJson::parse(text);
    return read(root);
  } catch (const OrderedJson::exception& error) {
    return fail(
        ErrorCode::checkpoint,
        fmt::format("{}: {}; the checkpoint is damaged or of another version of Sortie: use "
                    "an older one, or copy it again",
                    where, json_problem(error, text)));
  }
}

}  // namespace

std::string serialize(const ShardInfo& shard) {
  OrderedJson pieces = OrderedJson::array();
  for (const StoredPiece& stored : shard.pieces) {
    OrderedJson json = {{"key", stored.key},
                        {"name", stored.name},
                        {"dtype", storage_name(stored.type)},
                        {"shape", stored.shape}};
    put_piece(json, stored.piece, stored.shape);
    pieces.push_back(std::move(json));
  }
  return OrderedJson{{"file", shard.file},
                     {"bytes", shard.bytes},
                     {"sha256", shard.sha256},
                     {"pieces", std::move(pieces)}}
      .dump();
}

Result<ShardInfo> parse_shard_info(std::string_view text) {
  return read_json(text, "report of a shard", [](const OrderedJson& root) {
    ShardInfo shard{.file = root.at("file").get<std::string>(),
                    .bytes = integer<std::uint64_t>(root.at("bytes")),
                    .sha256 = root.at("sha256").get<std::string>()};
    for (const OrderedJson& json : root.at("pieces")) {
      StoredPiece stored{.key = json.at("key").get<std::string>(),
                         .name = json.at("name").get<std::string>(),
                         .type = get_type(json.at("dtype")),
                         .shape = get_dims(json.at("shape"))};
      stored.piece = get_piece(json, stored.shape);
      shard.pieces.push_back(std::move(stored));
    }
    return shard;
  });
}

std::string to_json(const Manifest& manifest) {
  for (const auto& [name, value] : manifest.scalars)
    SORTIE_CHECK(std::isfinite(value), "scalar {} is {}", name, value);
  OrderedJson tensors = OrderedJson::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    OrderedJson pieces = OrderedJson::array();
    for (const Manifest::PlacedPiece& placed : tensor.pieces) {
      OrderedJson json = {{"shard", placed.shard}, {"key", placed.key}};
      put_piece(json, placed.piece, tensor.shape);
      pieces.push_back(std::move(json));
    }
    tensors[name] = {{"dtype", storage_name(tensor.type)},
                     {"shape", tensor.shape},
                     {"pieces", std::move(pieces)}};
  }
  OrderedJson root = {{"format", kFormat},
                      {"version", kVersion},
                      {"run_id", manifest.run_id},
                      {"first_run_id", manifest.first_run_id},
                      {"lineage", manifest.lineage},
                      {"origin", nullptr},
                      {"step", manifest.step},
                      {"consumed_samples", manifest.consumed_samples},
                      {"tokens", manifest.tokens},
                      {"seed", manifest.seed},
                      {"created", manifest.created},
                      {"world_size", manifest.world_size},
                      {"scalars", manifest.scalars},
                      {"counters", manifest.counters},
                      {"depends_on", manifest.depends_on},
                      {"rollbacks", OrderedJson::parse(to_json_text(manifest.rollbacks))},
                      {"suspect", manifest.suspect},
                      {"config_digest", manifest.config_digest},
                      {"config", manifest.config},
                      {"shards", list_files(manifest.shards)},
                      {"files", list_files(manifest.files)},
                      {"tensors", std::move(tensors)}};
  if (manifest.origin)
    root["origin"] = {{"lineage", manifest.origin->lineage},
                      {"step", manifest.origin->step},
                      {"folder", manifest.origin->folder}};
  if (!manifest.product_choices.empty()) root["product_choices"] = manifest.product_choices;
  return json_text(root, 1) + "\n";
}

Result<Manifest> parse_manifest(std::string_view text, std::string_view where) {
  auto parsed = read_json(text, where, [](const OrderedJson& root) {
    if (root.at("format") != kFormat)
      throw OrderedJson::other_error::create(501, "not a checkpoint's manifest", &root);
    if (root.at("version") != kVersion)
      throw OrderedJson::other_error::create(
          501, "format version " + root.at("version").dump() + ", only version 1 is known", &root);
    Manifest manifest;
    root.at("run_id").get_to(manifest.run_id);
    // Older versions do not write these keys.
    manifest.first_run_id = root.value("first_run_id", "");
    manifest.lineage = root.value("lineage", "");
    if (const auto origin = root.find("origin"); origin != root.end() && !origin->is_null())
      manifest.origin = Manifest::Origin{origin->at("lineage").get<std::string>(),
                                         integer<std::int64_t>(origin->at("step")),
                                         origin->at("folder").get<std::string>()};
    manifest.step = integer<std::int64_t>(root.at("step"));
    manifest.consumed_samples = integer<std::uint64_t>(root.at("consumed_samples"));
    manifest.tokens = integer<std::uint64_t>(root.at("tokens"));
    manifest.seed = integer<std::uint64_t>(root.at("seed"));
    manifest.created = integer<std::int64_t>(root.at("created"));
    manifest.world_size = integer<std::int64_t>(root.at("world_size"));
    root.at("scalars").get_to(manifest.scalars);
    for (const auto& [key, value] : root.at("counters").items())
      manifest.counters[key] = integer<std::int64_t>(value);
    root.at("depends_on").get_to(manifest.depends_on);
    manifest.product_choices = root.value("product_choices", "");
    root.at("config_digest").get_to(manifest.config_digest);
    root.at("config").get_to(manifest.config);
    manifest.suspect = root.value("suspect", false);
    if (const auto list = root.find("rollbacks"); list != root.end()) {
      auto rollbacks = parse_rollbacks(list->dump(), "rollbacks");
      if (!rollbacks)
        throw OrderedJson::other_error::create(501, rollbacks.error().message, &*list);
      manifest.rollbacks = std::move(*rollbacks);
    }
    if (const auto list = root.find("files"); list != root.end())
      for (const OrderedJson& json : *list) manifest.files.push_back(get_file(json));
    std::vector<ShardInfo> shards;
    for (const OrderedJson& json : root.at("shards"))
      shards.push_back({.file = json.at("file").get<std::string>(),
                        .bytes = integer<std::uint64_t>(json.at("bytes")),
                        .sha256 = json.at("sha256").get<std::string>()});
    for (const auto& [name, json] : root.at("tensors").items()) {
      const StorageType type = get_type(json.at("dtype"));
      const Dims shape = get_dims(json.at("shape"));
      for (const OrderedJson& piece : json.at("pieces")) {
        const auto shard = integer<std::uint64_t>(piece.at("shard"));
        if (shard >= shards.size())
          throw OrderedJson::other_error::create(501, "a shard that is not listed", &piece);
        shards[shard].pieces.push_back({.key = piece.at("key").get<std::string>(),
                                        .name = name,
                                        .type = type,
                                        .shape = shape,
                                        .piece = get_piece(piece, shape)});
      }
    }
    return std::pair(std::move(manifest), std::move(shards));
  });
  if (!parsed) return std::unexpected(std::move(parsed).error());
  auto& [manifest, shards] = *parsed;
  if (auto added = add_shards(manifest, shards); !added)
    return std::unexpected(with_context(std::move(added).error(), where));
  return std::move(manifest);
}

}  // namespace sortie::trainer
