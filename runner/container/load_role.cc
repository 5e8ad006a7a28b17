#include "runner/container/load_role.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/asio/spawn.h"
#include "common/base/split.h"
#include "runner/streams/wakeup.h"

namespace sortie::runner::container {
namespace asio = boost::asio;

namespace {

using Json = nlohmann::json;

constexpr std::chrono::minutes kInspectLimit{2};
constexpr std::chrono::hours kLoadLimit{2};
constexpr std::chrono::seconds kSayLoadingEvery{15};
/// With more images than this, none is inspected and all layers are sent.
constexpr std::size_t kMaxImages = 500;

std::vector<std::string> unique_lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    if (!line.empty() && std::ranges::find(lines, line) == lines.end()) lines.emplace_back(line);
  }
  return lines;
}

sortie::container::Argv load_words(const Client& client, const std::string& file) {
  if (client.engine == Engine::ctr) return {client.program, "images", "import", file};
  return {client.program, "load", "--input", file};
}

Call call_of(sortie::container::Argv argv, std::chrono::milliseconds limit) {
  Call call;
  call.argv = std::move(argv);
  call.limit = limit;
  return call;
}

}  // namespace

std::uint32_t common_layers(std::string_view inspected, const std::vector<std::string>& diff_ids) {
  const Json images = Json::parse(inspected, nullptr, false);
  std::uint32_t most = 0;
  if (!images.is_array()) return most;
  for (const Json& image : images) {
    if (!image.is_object() || !image.contains("RootFS") || !image["RootFS"].is_object()) continue;
    const auto layers = image["RootFS"].find("Layers");
    if (layers == image["RootFS"].end() || !layers->is_array()) continue;
    std::uint32_t same = 0;
    for (const Json& layer : *layers) {
      if (same == diff_ids.size() || !layer.is_string() ||
          layer.get<std::string>() != diff_ids[same])
        break;
      ++same;
    }
    most = std::max(most, same);
  }
  return most;
}

Result<> LoadRole::query(wire::ImageQuery order) {
  if (std::exchange(busy_, true)) return fail(ErrorCode::protocol, "unexpected ImageQuery");
  spawn(io_, say_that_it_works("looking for " + order.image));
  spawn(io_, answer(std::move(order)));
  return {};
}

Result<> LoadRole::load(wire::ImageLoad order) {
  if (!order.file.starts_with('/') || !order.file.ends_with(".tar") || std::exchange(busy_, true))
    return fail(ErrorCode::protocol, "unexpected ImageLoad");
  spawn(io_, say_that_it_works("loading " + order.image));
  spawn(io_, carry_out(std::move(order)));
  return {};
}

/// An engine loads for a long time without output, but the launcher gives up on a silent host.
asio::awaitable<void> LoadRole::say_that_it_works(std::string at) {
  const unsigned order = ++orders_;
  asio::steady_timer pause(io_);
  for (;;) {
    pause.expires_after(kSayLoadingEvery);
    co_await pause.async_wait(kToken);
    if (!busy_ || orders_ != order) co_return;
    const wire::ImageProgress progress{at};
    link_.send(progress);
  }
}

asio::awaitable<void> LoadRole::answer(wire::ImageQuery order) {
  const Result<wire::ImageLacking> lacking = co_await look(std::move(order));
  busy_ = false;
  if (lacking)
    link_.send(*lacking);
  else
    on_failure_(lacking.error());
}

asio::awaitable<Result<wire::ImageLacking>> LoadRole::look(wire::ImageQuery order) {
  const Result<Client> client = find_client(order.engine);
  if (!client) co_return std::unexpected(client.error());
  const Result<EngineFacts> engine = co_await ask_engine(calls_, *client);
  if (!engine) co_return std::unexpected(engine.error());
  const auto image = co_await look_at_image(calls_, *client, order.image);
  if (!image) co_return std::unexpected(image.error());
  wire::ImageLacking lacking;
  lacking.present = *image && (*image)->id == order.image_id ? 1 : 0;
  if (lacking.present != 0) co_return lacking;
  const Result<std::uint32_t> layers = co_await layers_here(*client, std::move(order.diff_ids));
  if (!layers) co_return std::unexpected(layers.error());
  lacking.layers = *layers;
  co_return lacking;
}

/// Output of a command; "" if it fails: layers that can not be determined are sent.
asio::awaitable<Result<std::string>> LoadRole::output_of(sortie::container::Argv argv) {
  Call call = call_of(std::move(argv), kInspectLimit);
  Result<CallOutput> output = co_await calls_.run(std::move(call));
  if (!output) co_return std::unexpected(output.error());
  if (!output->status.success()) co_return std::string();
  co_return std::move(output->out);
}

/// Only Docker's own store loads an archive that lacks layers, because it identifies the existing
/// ones by their content. For others, returns 0.
asio::awaitable<Result<std::uint32_t>> LoadRole::layers_here(Client client,
                                                             std::vector<std::string> diff_ids) {
  if (client.engine != Engine::docker) co_return 0u;
  sortie::container::Argv words{client.program, "info", "--format", "{{json .DriverStatus}}"};
  const auto driver = co_await output_of(std::move(words));
  if (!driver) co_return std::unexpected(driver.error());
  if (driver->empty() || driver->find("io.containerd.snapshotter") != std::string::npos)
    co_return 0u;
  sortie::container::Argv list{client.program, "image", "ls", "--quiet", "--no-trunc"};
  const auto listed = co_await output_of(std::move(list));
  if (!listed) co_return std::unexpected(listed.error());
  const std::vector<std::string> ids = unique_lines_of(*listed);
  if (ids.empty() || ids.size() > kMaxImages) co_return 0u;
  sortie::container::Argv inspect{client.program, "image", "inspect"};
  inspect.insert(inspect.end(), ids.begin(), ids.end());
  const auto inspected = co_await output_of(std::move(inspect));
  if (!inspected) co_return std::unexpected(inspected.error());
  co_return common_layers(*inspected, diff_ids);
}

asio::awaitable<void> LoadRole::carry_out(wire::ImageLoad order) {
  const std::string file = order.file;
  const Result<wire::ImageReady> ready = co_await load_now(std::move(order));
  ::unlink(file.c_str());
  busy_ = false;
  if (ready)
    link_.send(*ready);
  else
    on_failure_(ready.error());
}

asio::awaitable<Result<wire::ImageReady>> LoadRole::load_now(wire::ImageLoad order) {
  const Result<Client> client = find_client(order.engine);
  if (!client) co_return std::unexpected(client.error());
  const Result<EngineFacts> engine = co_await ask_engine(calls_, *client);
  if (!engine) co_return std::unexpected(engine.error());
  Call call = call_of(load_words(*client, order.file), kLoadLimit);
  const Result<CallOutput> output = co_await calls_.run(std::move(call));
  if (!output) co_return std::unexpected(with_context(output.error(), "image " + order.image));
  if (!output->status.success())
    co_return std::unexpected(
        with_context(engine_error(*client, "load", *output), "image " + order.image));
  const auto image = co_await look_at_image(calls_, *client, order.image);
  if (!image) co_return std::unexpected(image.error());
  if (!*image)
    co_return fail(ErrorCode::runner,
                   fmt::format("image {}: is not there after it was loaded", order.image));
  wire::ImageReady ready;
  ready.image_id = (*image)->id;
  ready.repo_digest = (*image)->repo_digest;
  ready.engine_version = engine->version;
  ready.bytes = (*image)->bytes;
  ready.pulled = 1;
  co_return ready;
}

}  // namespace sortie::runner::container
