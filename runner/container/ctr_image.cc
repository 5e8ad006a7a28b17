#include "runner/container/ctr_image.h"

#include <fmt/core.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "common/base/json_member.h"

namespace sortie::runner::container {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::milliseconds kLimit{60000};

/// Digest of the manifest in the index for this machine's architecture, else of the first one.
std::string own_manifest(const Json& index) {
  const std::string own = own_architecture();
  std::string first;
  for (const Json& manifest : index["manifests"]) {
    std::string digest = json_member::text(manifest, "digest");
    if (first.empty()) first = digest;
    if (manifest.contains("platform") &&
        json_member::text(manifest["platform"], "architecture") == own)
      return digest;
  }
  return first;
}

boost::asio::awaitable<Result<Json>> content(EngineCalls& calls, const Client& client,
                                             const std::string& digest) {
  Call call;
  call.argv = {client.program, "content", "get", digest};
  call.limit = kLimit;
  const Result<CallOutput> output = co_await calls.run(std::move(call));
  if (!output) co_return std::unexpected(output.error());
  if (!output->status.success())
    co_return std::unexpected(engine_error(client, "content get", *output));
  Json json = Json::parse(output->out, nullptr, false);
  if (!json.is_object())
    co_return fail(ErrorCode::runner, fmt::format("ctr: {} is no JSON", digest));
  co_return json;
}

ImageFacts read_config(const Json& config, const std::string& id) {
  ImageFacts facts;
  facts.id = id;
  facts.architecture = json_member::text(config, "architecture");
  if (!config.contains("config") || !config["config"].is_object()) return facts;
  const Json& its = config["config"];
  facts.user = json_member::text(its, "User");
  if (its.contains("Entrypoint") && its["Entrypoint"].is_array())
    for (const Json& word : its["Entrypoint"])
      if (word.is_string()) facts.entrypoint.push_back(word.get<std::string>());
  return facts;
}

/// "UID[:GID]" as numbers; nullopt for a name or nothing.
struct UserNumbers {
  std::optional<std::uint32_t> uid, gid;
  explicit UserNumbers(std::string_view text) {
    const std::size_t colon = text.find(':');
    uid = number(text.substr(0, colon));
    if (colon != std::string_view::npos) gid = number(text.substr(colon + 1));
  }
  static std::optional<std::uint32_t> number(std::string_view text) {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
  }
};

}  // namespace

Result<> check_ctr_user(const std::string& image, const std::string& image_user,
                        const std::string& wanted) {
  const UserNumbers its(image_user), other(wanted);
  if (!its.uid || *its.uid == 0 || !other.uid) return {};
  const bool same_group = !its.gid || *its.gid == other.gid.value_or(*other.uid);
  if (*its.uid == *other.uid && same_group) return {};
  return fail(ErrorCode::unsupported,
              fmt::format("image {}: ctr starts it as its own user, {}, who can not become {}; set "
                          "runner.container.user = \"{}\", or install nerdctl",
                          image, image_user, wanted, image_user));
}

boost::asio::awaitable<Result<std::optional<ImageFacts>>> look_at_ctr_image(EngineCalls& calls,
                                                                            Client client,
                                                                            std::string image) {
  Call call;
  call.argv = sortie::container::inspect_image_command(Engine::ctr, client.program, image);
  call.limit = kLimit;
  const Result<CallOutput> output = co_await calls.run(std::move(call));
  if (!output) co_return std::unexpected(output.error());
  if (!output->status.success())
    co_return std::unexpected(engine_error(client, "images list", *output));
  const auto listed = sortie::container::listed_image(image, output->out);
  if (!listed) co_return std::optional<ImageFacts>{};
  Result<Json> manifest = co_await content(calls, client, listed->digest);
  if (manifest && manifest->contains("manifests") && (*manifest)["manifests"].is_array()) {
    const std::string own = own_manifest(*manifest);
    manifest = co_await content(calls, client, own);
  }
  if (!manifest) co_return std::unexpected(manifest.error());
  std::string id;
  if (manifest->contains("config")) id = json_member::text((*manifest)["config"], "digest");
  if (id.empty())
    co_return fail(ErrorCode::runner, fmt::format("image {}: its manifest names no config", image));
  const Result<Json> config = co_await content(calls, client, id);
  if (!config) co_return std::unexpected(config.error());
  ImageFacts facts = read_config(*config, id);
  if (manifest->contains("layers") && (*manifest)["layers"].is_array())
    for (const Json& layer : (*manifest)["layers"])
      if (layer.contains("size") && layer["size"].is_number_unsigned())
        facts.bytes += layer["size"].get<std::uint64_t>();
  facts.name = listed->name;
  facts.repo_digest = fmt::format("{}@{}", image.substr(0, image.rfind(':')), listed->digest);
  co_return facts;
}

}  // namespace sortie::runner::container
