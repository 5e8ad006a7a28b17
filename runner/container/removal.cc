#include "runner/container/removal.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

#include "common/base/split.h"
#include "runner/cleanup/folder_lock.h"
#include "runner/job/node_facts.h"
#include "runner/streams/wakeup.h"

namespace sortie::runner::container {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kRemovalPause{50};
constexpr milliseconds kListLimit{20000};
constexpr milliseconds kStaleLimit{8000};

milliseconds left_until(Clock::time_point deadline) {
  return std::max(milliseconds(1), std::chrono::ceil<milliseconds>(deadline - Clock::now()));
}

/// Returns the ids of containers with a label, for ctr their names.
boost::asio::awaitable<Result<std::vector<std::string>>> list(EngineCalls& calls,
                                                              const Client& client,
                                                              std::string_view label,
                                                              const std::string& value,
                                                              milliseconds limit) {
  Call call;
  call.argv = sortie::container::list_command(client.engine, client.program, label, value);
  call.limit = limit;
  const Result<CallOutput> output = co_await calls.run(std::move(call));
  if (!output) co_return std::unexpected(output.error());
  if (!output->status.success()) co_return std::unexpected(engine_error(client, "list", *output));
  co_return split_filled(output->out, '\n');
}

struct Known {
  std::string name;
  std::map<std::string, std::string> labels;
  // Both are also false if the engine does not report them (ctr).
  bool running = false;
  bool paused = false;
  std::string label(std::string_view key) const {
    const auto found = labels.find(std::string(key));
    return found == labels.end() ? std::string() : found->second;
  }
};

std::vector<Known> read_containers(std::string_view text) {
  std::vector<Known> known;
  Json list = Json::parse(text, nullptr, false);
  if (list.is_object()) list = Json::array({list});
  if (!list.is_array()) return known;
  for (const Json& entry : list) {
    if (!entry.is_object()) continue;
    Known one;
    for (const char* key : {"Id", "ID"})
      if (entry.contains(key) && entry[key].is_string()) one.name = entry[key].get<std::string>();
    const Json& holder =
        entry.contains("Config") && entry["Config"].is_object() ? entry["Config"] : entry;
    if (holder.contains("Labels") && holder["Labels"].is_object())
      for (const auto& [key, value] : holder["Labels"].items())
        if (value.is_string()) one.labels[key] = value.get<std::string>();
    if (const auto state = entry.find("State"); state != entry.end() && state->is_object()) {
      one.running = state->value("Running", Json()) == true;
      one.paused = state->value("Paused", Json()) == true;
    }
    if (!one.name.empty()) known.push_back(std::move(one));
  }
  return known;
}

boost::asio::awaitable<std::vector<Known>> inspect(EngineCalls& calls, const Client& client,
                                                   const std::vector<std::string>& ids) {
  Call call;
  call.argv = sortie::container::inspect_command(client.engine, client.program, ids);
  call.limit = kListLimit;
  const Result<CallOutput> output = co_await calls.run(std::move(call));
  std::vector<Known> known;
  if (output) known = read_containers(output->out);  // containers that ended meanwhile are left out
  co_return known;
}

/// "containers still there: NAMES: WHY; remove them with `COMMAND`".
std::string still_there(const Client& client, const std::vector<std::string>& names,
                        std::string_view why) {
  const std::string_view engine = sortie::container::engine_name(client.engine);
  std::string commands;
  for (const auto& argv :
       sortie::container::remove_commands(client.engine, std::string(engine), names))
    commands += (commands.empty() ? "" : "; ") + sortie::container::shown(argv);
  return fmt::format("container{} still there: {}: {}; remove {} with `{}`",
                     names.size() == 1 ? "" : "s", fmt::join(names, ", "), why,
                     names.size() == 1 ? "it" : "them", commands);
}

std::uint32_t number(const std::string& text) {
  std::uint32_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::string_view boot_of(std::string_view machine) {
  return machine.substr(0, machine.find('/'));
}

/// Whether the container's folder and its holders are visible from here. One engine may serve
/// several hosts that are containers themselves, and a runner sees neither /tmp nor the processes
/// of another one. Containers of an earlier boot may be judged if they do not run. Older versions
/// set no such label.
bool may_judge(const Known& container) {
  const std::string machine = container.label(sortie::container::kMachineLabel);
  if (machine.empty() || machine == machine_id()) return true;
  return boot_of(machine) != boot_of(machine_id()) && !container.running;
}

bool is_stale(const Known& container, const Fenced& fenced) {
  if (container.label(sortie::container::kRunLabel) == fenced.run_id) {
    if (fenced.below_attempt == 0) return true;
    if (number(container.label(sortie::container::kAttemptLabel)) < fenced.below_attempt &&
        number(container.label(sortie::container::kNodeLabel)) == fenced.node_rank)
      return true;
  }
  const std::string folder = container.label(sortie::container::kFolderLabel);
  if (folder.empty() || !may_judge(container)) return false;
  // Frozen keepers hold the folder for ever. The runner and its guard are outside the container.
  return container.paused ? !may_be_held_here(folder) : !may_be_held(folder);
}

}  // namespace

boost::asio::awaitable<Result<>> remove_containers(boost::asio::io_context& io, EngineCalls& calls,
                                                   Client client, std::vector<std::string> names,
                                                   std::string folder, milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  boost::asio::steady_timer pause(io);
  Error last{ErrorCode::timeout, "no time"};
  const auto note = [&last](Error error) {  // the last call only lacks time
    if (error.code != ErrorCode::timeout || last.code == ErrorCode::timeout)
      last = std::move(error);
  };
  while (Clock::now() < deadline) {
    bool all = true;
    auto commands = sortie::container::remove_commands(client.engine, client.program, names);
    for (auto& argv : commands) {
      Call call;
      call.argv = std::move(argv);
      call.limit = left_until(deadline);
      const Result<CallOutput> output = co_await calls.run(std::move(call));
      if (output && output->status.success()) continue;
      all = false;
      note(output ? engine_error(client, "rm", *output) : output.error());
    }
    if (all) co_return Result<>{};
    const auto left =
        co_await list(calls, client, sortie::container::kFolderLabel, folder, left_until(deadline));
    if (left && left->empty()) co_return Result<>{};
    if (!left) note(left.error());
    pause.expires_after(kRemovalPause);
    co_await pause.async_wait(kToken);
  }
  co_return fail(ErrorCode::timeout, still_there(client, names, last.message));
}

boost::asio::awaitable<Result<std::size_t>> remove_stale(boost::asio::io_context& io,
                                                         EngineCalls& calls, Client client,
                                                         Fenced fenced) {
  const auto ids = co_await list(calls, client, sortie::container::kUidLabel,
                                 std::to_string(::geteuid()), kListLimit);
  if (!ids) co_return std::unexpected(ids.error());
  if (ids->empty()) co_return std::size_t{0};
  const std::vector<Known> known = co_await inspect(calls, client, *ids);
  std::map<std::string, std::vector<std::string>> by_folder;
  std::size_t count = 0;
  for (const Known& container : known)
    if (is_stale(container, fenced)) {
      by_folder[container.label(sortie::container::kFolderLabel)].push_back(container.name);
      ++count;
    }
  for (const auto& [folder, names] : by_folder) {
    const Result<> removed =
        co_await remove_containers(io, calls, client, names, folder, kStaleLimit);
    if (!removed) co_return std::unexpected(removed.error());
  }
  co_return count;
}

}  // namespace sortie::runner::container
