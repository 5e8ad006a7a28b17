// Boxes: the containers of one job on this host: one for all ranks, or one per rank. They are
// started before the job is ready, kept alive by the socket of their process 1, and removed before
// the job is finished.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/cpu/topology.h"
#include "common/wire/message.h"
#include "runner/container/guard.h"
#include "runner/container/host_facts.h"
#include "runner/container/image.h"
#include "runner/process/held_process.h"

namespace sortie::runner::container {

class Boxes {
 public:
  /// Code of the error for containers without living processes.
  static constexpr ErrorCode kLeftBehind = ErrorCode::runner;

  struct Events {
    std::function<void(pid_t)> on_keeper;  // a child of this process that is no orphan
    std::function<bool()> stopped;         // whether the job was asked to stop meanwhile
    /// The engine ends a container (`docker stop`, or the engine itself ends).
    std::function<void(std::string why)> on_end_asked;
  };

  /// `job` must outlive this object.
  Boxes(boost::asio::io_context& io, const wire::JobSpec& job, const ProcessDefaults& defaults,
        Events events);

  /// Checks the order, removes stale containers, starts the job's containers and waits for their
  /// process 1. `image`: the result of the launcher's ImageOrder. After an error the caller must
  /// still call remove().
  boost::asio::awaitable<Result<>> prepare(std::optional<ReadyImage> image, std::string run_folder,
                                           const cpu::Topology& topology);

  /// The command line of a rank: the image's or the config's entrypoint, followed by `program`.
  std::vector<std::string> argv(const std::vector<std::string>& program) const;
  /// Translates the rank's own variables for the inside of its container (CUDA_VISIBLE_DEVICES).
  void adapt(wire::Environment& env, std::size_t slot) const;
  /// PATH of the container that the rank at `slot` is in.
  const std::string& path(std::size_t slot) const { return box_of(slot).path; }
  /// "image NAME, container NAME", for messages.
  std::string where(std::size_t slot) const;

  Result<> start(std::size_t slot, HeldProcess& process, const HeldSpec& spec,
                 HeldProcess::OnReport on_report);
  /// Why the keeper of the rank at `slot` ended without a report; empty if its container is not
  /// known to be lost.
  std::string why_lost(std::size_t slot) const;
  /// Whether the container of that rank ended without our doing.
  bool lost(std::size_t slot) const { return box_of(slot).lost; }

  /// Closes the sockets and has the engine remove the containers. Later calls are no-ops, as is a
  /// call without containers. Error: a container still exists; ErrorCode::timeout if it has living
  /// processes, else kLeftBehind.
  boost::asio::awaitable<Result<>> remove(std::chrono::milliseconds limit);

 private:
  struct Running {
    explicit Running(boost::asio::io_context& io) : listener(io), init(io) {}
    sortie::container::Box box;
    std::vector<std::size_t> slots;
    std::string name, socket_path, path, complaint;
    boost::asio::posix::stream_descriptor listener, init;
    pid_t init_pid = 0;   // as this process sees it
    bool called = false;  // the engine was asked to start it
    bool greeted = false;
    bool lost = false;
  };

  boost::asio::awaitable<Result<>> find_image(std::optional<ReadyImage> image);
  boost::asio::awaitable<Result<>> clear_stale();
  void plan();
  Result<> listen(Running& box);
  Result<> open_folder_to_others() const;
  Result<> start_guard();
  boost::asio::awaitable<Result<>> start_box(Running& box, HostFacts facts);
  boost::asio::awaitable<Result<>> start_all(HostFacts facts, const cpu::Topology& topology);
  boost::asio::awaitable<Result<>> await_hello(Running& box);
  Result<bool> accept(Running& box);
  void watch(Running& box);
  void read_report(Running& box);
  std::vector<std::string> names() const;
  const Running& box_of(std::size_t slot) const { return *boxes_[box_of_slot_[slot]]; }

  boost::asio::io_context& io_;
  const wire::JobSpec& job_;
  wire::ContainerSpec spec_;
  Events events_;
  EngineCalls calls_;
  ReadyImage image_;
  Guard guard_;
  std::string run_folder_;
  std::vector<std::string> uuids_;
  std::vector<std::unique_ptr<Running>> boxes_;
  std::chrono::steady_clock::time_point orders_until_{};  // limit for waits to send orders
  std::vector<std::size_t> box_of_slot_;
  bool removing_ = false;
};

}  // namespace sortie::runner::container
