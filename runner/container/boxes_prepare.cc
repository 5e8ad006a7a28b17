// The part of Boxes that runs before the job is ready.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>

#include "common/asio/task_group.h"
#include "common/base/log.h"
#include "runner/container/boxes.h"
#include "runner/container/removal.h"
#include "runner/memory/memory_folder.h"
#include "runner/streams/wakeup.h"

namespace sortie::runner::container {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kStartLimit{120000};
constexpr milliseconds kHelloLimit{30000};
constexpr milliseconds kLook{500};

/// Whether the container runtime failed because it lacks CAP_SYS_RESOURCE.
bool refuses_limits(const CallOutput& output) {
  return output.err.find("rlimit") != std::string::npos;
}

std::string limits_text(const std::vector<std::pair<std::string, std::string>>& limits) {
  std::string text;
  for (const auto& [name, value] : limits)
    text += fmt::format("{}ulimit {}={}", text.empty() ? "" : ", ", name, value);
  return text;
}

}  // namespace

boost::asio::awaitable<Result<>> Boxes::prepare(std::optional<ReadyImage> image,
                                                std::string run_folder,
                                                const cpu::Topology& topology) {
  run_folder_ = std::move(run_folder);
  uuids_ = gpu_uuids(topology);
  plan();
  Result<> done = co_await find_image(std::move(image));
  if (!done) co_return done;
  spec_.engine = sortie::container::engine_name(image_.engine.client.engine);
  for (const auto& box : boxes_) {
    done = listen(*box);
    if (!done) co_return done;
  }
  Result<HostFacts> facts = read_host_facts(image_.engine, run_folder_, !spec_.user.empty());
  if (!facts) co_return std::unexpected(facts.error());
  done = open_folder_to_others();
  if (job_.memory != 0) {
    facts->memory_folder = memory_folder_path(job_.run_id, job_.host);
    if (done && !spec_.user.empty()) done = open_memory_to_others(facts->memory_folder);
  }
  if (done) done = start_guard();
  if (!done) co_return done;
  co_return co_await start_all(std::move(*facts), topology);
}

/// Queries the engine now if no ImageOrder preceded the job.
boost::asio::awaitable<Result<>> Boxes::find_image(std::optional<ReadyImage> image) {
  if (image) {
    image_ = std::move(*image);
  } else {
    wire::ImageOrder order;
    order.engine = spec_.engine;
    order.image = spec_.image_id.empty() || spec_.engine == "ctr" || spec_.engine == "containerd"
                      ? spec_.image
                      : spec_.image_id;
    constexpr std::uint8_t kNever = 2;
    order.pull = kNever;
    order.user = spec_.user;
    for (const wire::Mount& mount : spec_.mounts) order.mount_sources.push_back(mount.source);
    bool pulled = false;
    std::function<void(const wire::ImageProgress&)> nobody = [](const wire::ImageProgress&) {};
    Result<ReadyImage> found = co_await have_image(calls_, std::move(order), nobody, pulled);
    if (!found) co_return std::unexpected(found.error());
    image_ = std::move(*found);
  }
  if (!spec_.image_id.empty() && spec_.image_id != image_.image.id)
    co_return fail(ErrorCode::runner,
                   fmt::format("image {}: is {} here by now, and {} on the other hosts",
                               spec_.image, image_.image.id, spec_.image_id));
  co_return Result<>{};
}

/// Removes stale containers. A failure must not prevent the start of a first attempt. Containers of
/// earlier attempts of this run must be gone.
boost::asio::awaitable<Result<>> Boxes::clear_stale() {
  const Fenced fenced{job_.run_id, job_.attempt, job_.node_rank};
  const Result<std::size_t> count =
      co_await remove_stale(io_, calls_, image_.engine.client, fenced);
  if (!count && job_.attempt > 1)
    co_return std::unexpected(
        with_context(count.error(), "containers of an earlier attempt were not removed"));
  if (!count)
    log::warning("orphaned containers were not removed: {}", count.error().message);
  else if (*count > 0)
    log::warning("removed {} orphaned containers", *count);
  co_return Result<>{};
}

/// Starts the first container, whose memory the others may share, then all others concurrently.
boost::asio::awaitable<Result<>> Boxes::start_all(HostFacts facts, const cpu::Topology& topology) {
  TaskGroup tasks(io_.get_executor());
  Result<> all;
  const auto start_one = [this, &all](Running& box, HostFacts its) -> boost::asio::awaitable<void> {
    const Result<> done = co_await start_box(box, std::move(its));
    if (!done && all) all = done;
  };
  const auto clear = [this, &all]() -> boost::asio::awaitable<void> {
    const Result<> done = co_await clear_stale();
    if (!done && all) all = done;
  };
  tasks.spawn(clear());  // concurrently in a first attempt: stale containers have other names
  if (job_.attempt > 1) co_await tasks.wait();
  if (!all) co_return all;
  for (const auto& box : boxes_) {
    std::vector<std::uint32_t> slots;
    for (const std::size_t slot : box->slots) slots.push_back(job_.ranks[slot].slot);
    HostFacts its = facts;
    if (const Result<> gpus = add_gpus(its, spec_, topology, slots); !gpus) {
      if (all) all = gpus;
      break;
    }
    boost::asio::awaitable<void> task = start_one(*box, std::move(its));
    tasks.spawn(std::move(task));
    if (box != boxes_.front()) continue;
    co_await tasks.wait();
    if (!all) break;
  }
  co_await tasks.wait();
  co_return all;
}

boost::asio::awaitable<Result<>> Boxes::start_box(Running& box, HostFacts facts) {
  const Client& client = image_.engine.client;
  const std::string image = client.engine == Engine::ctr ? image_.image.name : image_.image.id;
  const auto limits = spec_.ulimits;  // another container may clear them meanwhile
  auto words = start_command(spec_, facts, box.box, image, box.socket_path);
  if (!words) co_return std::unexpected(words.error());
  if (events_.stopped()) co_return fail(ErrorCode::interrupted, "stopped");
  box.called = true;
  Call call;
  call.argv = std::move(*words);
  call.limit = kStartLimit;
  call.cancelled = events_.stopped;
  // podman has no daemon: the monitor of the container is a descendant of this call.
  call.detaches = client.engine == Engine::podman;
  const Result<CallOutput> output = co_await calls_.run(std::move(call));
  if (!output) co_return std::unexpected(output.error());
  if (!output->status.success() && spec_.ulimits_are_wishes && !limits.empty() &&
      refuses_limits(*output)) {
    if (!spec_.ulimits.empty())
      log::warning("{} may not grant {}; containers have the engine's own limits",
                   image_.engine.version, limits_text(limits));
    spec_.ulimits.clear();
    std::vector<std::string> refused(1, box.name);
    const Result<> removed = co_await remove_containers(io_, calls_, client, std::move(refused),
                                                        run_folder_, kHelloLimit);
    if (!removed) co_return removed;
    co_return co_await start_box(box, std::move(facts));
  }
  if (!output->status.success())
    co_return std::unexpected(
        with_context(engine_error(client, "run", *output, ErrorCode::spawn),
                     fmt::format("container: exit code {}", output->status.shell_code())));
  co_return co_await await_hello(box);
}

boost::asio::awaitable<Result<>> Boxes::await_hello(Running& box) {
  const auto begin = Clock::now();
  boost::asio::steady_timer pause(io_);
  auto looked = begin;
  const Client& client = image_.engine.client;
  for (milliseconds wait{1}; !box.greeted; wait = std::min(wait * 2, milliseconds(20))) {
    if (!box.init.is_open()) {
      const Result<bool> there = accept(box);
      if (!there) co_return std::unexpected(there.error());
      if (*there) watch(box);
    }
    if (events_.stopped()) co_return fail(ErrorCode::interrupted, "stopped");
    if (Clock::now() - begin > kHelloLimit)
      co_return fail(ErrorCode::timeout,
                     fmt::format("container {}: its process 1 does not answer within {} s",
                                 box.name, kHelloLimit.count() / 1000));
    if (box.lost || Clock::now() - looked > kLook) {
      looked = Clock::now();
      Call call;
      call.argv = sortie::container::state_command(client.engine, client.program, box.name);
      call.limit = kHelloLimit;
      const Result<CallOutput> output = co_await calls_.run(std::move(call));
      const bool ended = output && sortie::container::has_ended(client.engine, box.name,
                                                                output->status, output->out);
      if (box.lost || (ended && !box.init.is_open()))
        co_return fail(
            ErrorCode::spawn,
            fmt::format("container {}: ended before its process 1 had reached the runner; may its "
                        "user ({}) use {}?",
                        box.name, spec_.user.empty() ? "the caller" : spec_.user, run_folder_));
    }
    pause.expires_after(wait);
    co_await pause.async_wait(kToken);
  }
  co_return Result<>{};
}

}  // namespace sortie::runner::container
