// The part of Job between JobSpec and JobReady.
#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "common/asio/spawn.h"
#include "common/base/boot_clock.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/pipe.h"
#include "common/wire/node_list.h"
#include "runner/cleanup/shared_memory.h"
#include "runner/cleanup/stale.h"
#include "runner/job/environment.h"
#include "runner/job/job.h"
#include "runner/job/network.h"
#include "runner/mpi/mpi_program.h"
#include "runner/process/cgroup.h"
#include "runner/unix_time.h"

namespace sortie::runner {
namespace {

constexpr int kFenceRounds = 50;
constexpr auto kFencePause = std::chrono::milliseconds(20);

cpu::Policy policy_of(wire::CpuBinding binding) {
  switch (binding) {
    case wire::CpuBinding::none:
      return cpu::Policy::none;
    case wire::CpuBinding::automatic:
      return cpu::Policy::automatic;
    case wire::CpuBinding::core:
      return cpu::Policy::core;
    case wire::CpuBinding::numa:
      return cpu::Policy::numa;
  }
  return cpu::Policy::none;
}

/// Why the folder can not be entered: an errno, or 0 if it can.
int entry_error(const std::string& folder) {
  struct stat info {};
  if (::stat(folder.c_str(), &info) != 0) return errno;
  if (!S_ISDIR(info.st_mode)) return ENOTDIR;
  return ::access(folder.c_str(), X_OK) == 0 ? 0 : errno;
}

/// Working directory of a rank: the first of `folders` that can be entered.
std::string first_folder(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders)
    if (entry_error(folder) == 0) return folder;
  return "";
}

/// Refuses a job whose work folder is required and can not be entered.
Result<> check_work_dir(const wire::JobSpec& job) {
  if (job.need_work_dir == 0 || !job.container.engine.empty()) return {};
  const int error = entry_error(job.work_dir);
  if (error == 0) return {};
  return fail(ErrorCode::unsupported,
              fmt::format("runner.work_dir: {}: {}; create that folder on this host, or correct "
                          "the key",
                          job.work_dir, std::strerror(error)));
}

/// Why the PMIx server here can not wire up ranks in containers; "" if it can.
std::string no_pmix_inside(const wire::JobSpec& job) {
  const wire::ContainerSpec& box = job.container;
  if (box.engine.empty()) return {};
  if (!box.network.empty() && box.network != "host")
    return fmt::format(
        "MPI ranks in containers need network = \"host\" (the PMIx server listens on 127.0.0.1); "
        "it is \"{}\"",
        box.network);
  if (!box.user.empty() && box.user != std::to_string(::geteuid()) &&
      !box.user.starts_with(fmt::format("{}:", ::geteuid())))
    return fmt::format(
        "MPI ranks in containers must be of the same user as the runner ({}); user is \"{}\"",
        ::geteuid(), box.user);
  return {};
}

Result<Pipe> output_pipe() {
  Result<Pipe> pipe = make_pipe();
  if (!pipe) return std::unexpected(with_context(pipe.error(), "pipe for output"));
  return pipe;
}

/// Numbers the global ranks consecutively over the hosts.
void list_nodes(const wire::JobSpec& job, wire::PmixSetup& setup) {
  const auto nodes = wire::expand_nodes(job.nodes);
  SORTIE_CHECK(nodes.has_value(), "check_job() accepts no other list");
  std::uint32_t rank = 0;
  for (const auto& [host, ranks] : *nodes) {
    std::string list;
    for (std::uint32_t i = 0; i < ranks; ++i)
      list += fmt::format("{}{}", i == 0 ? "" : ",", rank++);
    setup.node_hosts.push_back(host);
    setup.node_ranks.push_back(std::move(list));
  }
}

/// Counts the descriptors that the runner keeps open. Per rank: a socket for events, one for its
/// keeper, and the pipes of stdin, stdout and stderr, with both ends until the rank is started. In
/// addition, sockets and files whose number does not depend on the ranks.
Result<> check_open_files(const wire::JobSpec& job) {
  constexpr std::uint64_t kPerRank = 9, kElse = 64;
  const std::uint64_t needed = kElse + kPerRank * job.ranks.size();
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  if (needed <= limit.rlim_cur) return {};
  return fail(ErrorCode::unsupported,
              fmt::format("{} {} open files, this host allows {}; raise the hard limit of "
                          "`ulimit -n` there (for example in /etc/security/limits.conf)",
                          job.ranks.size() == 1 ? "its process needs"
                                                : fmt::format("{} ranks need", job.ranks.size()),
                          needed, limit.rlim_cur));
}

}  // namespace

boost::asio::awaitable<Result<wire::JobReady>> Job::prepare() {
  if (auto enough = check_open_files(spec_); !enough)
    co_return std::unexpected(std::move(enough).error());
  if (auto folder = check_work_dir(spec_); !folder)
    co_return std::unexpected(std::move(folder).error());
  const Result<> alone = co_await fence();
  if (!alone) co_return std::unexpected(alone.error());
  if (auto made = prepare_folder(); !made) co_return std::unexpected(std::move(made).error());
  if (in_containers())
    cgroup_note_ = "none: the ranks are in containers";
  else
    prepare_cgroup();
  if (spec_.forwards != 0) {
    forwards_ = std::make_unique<Forwards>(
        io_, [this](const wire::Message& message) { link_.send(message); });
    if (auto opened = forwards_->open(forward_path()); !opened)
      co_return std::unexpected(std::move(opened).error());
  }
  for (const wire::RankSpec& rank : spec_.ranks) {
    ranks_.push_back(std::make_unique<Rank>(io_, rank));
    if (auto made = prepare_rank(*ranks_.back()); !made)
      co_return std::unexpected(std::move(made).error());
  }
  prepare_binding();
  if (in_containers())
    if (auto made = co_await prepare_boxes(); !made)
      co_return std::unexpected(std::move(made).error());
  if (auto made = prepare_port(); !made) co_return std::unexpected(std::move(made).error());
  if (auto made = co_await prepare_pmix(); !made)
    co_return std::unexpected(std::move(made).error());
  prepared_ = true;
  co_return ready();
}

wire::JobReady Job::ready() const {
  wire::JobReady ready;
  ready.hostname = facts_.hostname;
  ready.cpus = facts_.cpus;
  ready.memory_bytes = facts_.memory_bytes;
  ready.kernel = facts_.kernel;
  ready.cgroup = cgroup_note_;
  ready.pmix = pmix_note_;
  if (!spec_.autostart) ready.addresses = interface_addresses();  // else ranks meet no other host
  ready.routes = routes_to(spec_.peers);
  ready.master_port = port_.port();
  ready.binding = binding_.note;
  for (const cpu::Share& share : binding_.ranks)
    ready.cpu_sets.push_back(cpu::cpu_list_text(share.cpus));
  ready.time_unix_ms = unix_ms();
  ready.machine_id = facts_.machine_id;
  ready.time_boot_ms = static_cast<std::uint64_t>(boot_ms());
  ready.gpus = static_cast<std::uint32_t>(topology_.gpus.size());
  if (!in_containers() && !spec_.work_dir.empty() && entry_error(spec_.work_dir) != 0)
    ready.no_work_dir = 1;
  return ready;
}

void Job::prepare_binding() {
  // Reading the cores takes several files each, so it is skipped for a command that is not bound to
  // any.
  if (spec_.cpu_binding == wire::CpuBinding::none && !in_containers())
    topology_.gpus = cpu::read_gpus("/");
  else
    topology_ = cpu::read_topology("/", cpu::allowed_cpus());
  std::vector<std::uint32_t> slots;
  for (const wire::RankSpec& rank : spec_.ranks) slots.push_back(rank.slot);
  binding_ = cpu::bind_ranks(topology_, policy_of(spec_.cpu_binding), slots);
}

Result<> Job::prepare_port() {
  if (spec_.master_port == 0) return {};
  SORTIE_ASSIGN_OR_RETURN(port_, lease_master_port(spec_.master_port, spec_.run_id));
  return {};
}

/// Only a restart can meet an earlier attempt, so /proc is searched only then.
boost::asio::awaitable<Result<>> Job::fence() {
  if (spec_.attempt == 1) co_return Result<>{};
  std::size_t total = cgroup::end_earlier_attempts(spec_.run_id, spec_.attempt), left = 0;
  for (int round = 0; round < kFenceRounds; ++round) {
    left = kill_stale_processes(spec_.run_id, spec_.attempt);
    total += left;
    if (left == 0) break;
    boost::asio::steady_timer pause(io_, kFencePause);
    co_await pause.async_wait(kToken);
  }
  if (left > 0)
    co_return fail(
        ErrorCode::runner,
        fmt::format("{} processes of an earlier attempt can not be killed; see what they "
                    "hang in, or restart the host",
                    left));
  if (total > 0) log::warning("killed leftover processes of earlier attempts of {}", spec_.run_id);
  co_return Result<>{};
}

Result<> Job::prepare_folder() {
  SORTIE_ASSIGN_OR_RETURN(
      folder_, RunFolder::make(run_folder_name(spec_.run_id, spec_.attempt, spec_.node_rank)));
  remove_stale_cgroups();
  if (spec_.config_toml.empty()) return {};
  SORTIE_TRY(folder_.write("config.toml", spec_.config_toml));
  config_path_ = folder_.path() + "/config.toml";
  return {};
}

void Job::prepare_cgroup() {
  Result<std::string> made = cgroup::make_job_folder(
      cgroup::job_folder_name(spec_.run_id, spec_.attempt, spec_.node_rank));
  if (made) {
    cgroup_ = *made;
    cgroup_note_ = "v2 " + cgroup_;
  } else {
    cgroup_note_ = "none: " + made.error().message;
  }
}

Result<> Job::prepare_rank(Rank& rank) {
  const std::uint32_t number = rank.spec->rank;
  rank.exited.rank = number;
  rank.socket_path = fmt::format("{}/rank-{}.sock", folder_.path(), number);
  rank.events = std::make_unique<EventSocket>(
      io_, fmt::format("rank {}", number),
      [this, &rank](std::string line) { on_event(rank, std::move(line)); });
  SORTIE_TRY(rank.events->open(rank.socket_path));
  SORTIE_ASSIGN_OR_RETURN(Pipe out, output_pipe());
  SORTIE_ASSIGN_OR_RETURN(Pipe err, output_pipe());
  rank.out = std::move(out.write);
  rank.err = std::move(err.write);
  pump_.add(number, std::move(out.read), std::move(err.read));
  if (spec_.input_window > 0) {
    rank.input = std::make_unique<InputFeed>(
        io_, spec_.input_window, [this](const wire::InputCredit& credit) { link_.send(credit); });
    SORTIE_ASSIGN_OR_RETURN(rank.in, rank.input->open());
  }
  if (!cgroup_.empty()) {
    rank.cgroup = fmt::format("{}/rank-{}", cgroup_, number);
    if (auto made = cgroup::make(rank.cgroup); !made) {
      log::warning("rank {}: no cgroup: {}", number, made.error().message);
      rank.cgroup.clear();
    }
  }
  return {};
}

boost::asio::awaitable<Result<>> Job::prepare_boxes() {
  container::Boxes::Events events;
  events.on_keeper = [this](pid_t keeper) { keepers_.insert(keeper); };
  events.stopped = [this] { return stopped_; };
  events.on_end_asked = [this](std::string why) {
    if (stopped_) return;
    send_error(ErrorCode::lost, std::move(why));
    stop(std::chrono::milliseconds(spec_.grace_ms));
  };
  boxes_ = std::make_unique<container::Boxes>(io_, spec_, defaults_, std::move(events));
  co_return co_await boxes_->prepare(std::move(image_), folder_.path(), topology_);
}

boost::asio::awaitable<Result<>> Job::prepare_pmix() {
  if (spec_.mpi == 0) {
    pmix_note_ = "none: off";
    co_return Result<>{};
  }
  if (const std::string why = no_pmix_inside(spec_); !why.empty()) {
    if (spec_.mpi == 2) co_return fail(ErrorCode::unsupported, why);
    pmix_note_ = "none: " + why;
    co_return Result<>{};
  }
  auto folder = folder_.make_subfolder("pmix");
  if (!folder) co_return std::unexpected(std::move(folder).error());
  wire::PmixSetup setup;
  setup.nspace = fmt::format("sortie-{}-{}", spec_.run_id, spec_.attempt);
  setup.host = spec_.host;
  list_nodes(spec_, setup);
  setup.world_size = spec_.world_size;
  for (const wire::RankSpec& rank : spec_.ranks) setup.local_ranks.push_back(rank.rank);
  setup.tmp_dir = *folder;

  HeldSpec held;
  held.env = pmix_environment(base_environment(environ), spec_);
  held.folders = {"/"};
  held.job_cgroup = cgroup_;
  held.run_folder = folder_.path();
  held.defaults = defaults_;
  pmix_ = std::make_unique<PmixHelper>(io_);
  auto ready = co_await pmix_->start(setup, std::move(held), folder_.path(),
                                     [this](pid_t keeper) { keepers_.insert(keeper); });
  if (!ready) {
    co_await pmix_->wait_gone(std::chrono::seconds(2));
    if (spec_.mpi == 2)
      co_return fail(ready.error().code,
                     "MPI ranks can not be wired up here: " + ready.error().message);
    pmix_note_ = "none: " + ready.error().message;
    co_return check_without_pmix(ready.error().message);
  }
  pmix_note_ = "libpmix " + ready->version;
  pmix_env_ = std::move(ready->env);
  share_memory_in_a_folder();
  pmix_up_ = true;
  spawn(io_, pmix_->relay(
                 [this](wire::Message message) {
                   if (const auto* answer = std::get_if<wire::PmixExited>(&message))
                     return finalize_check_.take(*answer);
                   if (spec_.hold_ms > 0) pmix_memory_.asked(message);
                   link_.send(message);
                 },
                 [this](std::string why) { on_pmix_lost(std::move(why)); }));
  co_return Result<>{};
}

/// Places the shared memory of Open MPI 4 (vader) and 5 (sm) in a folder that is removed with the
/// run. Containers have their own /dev/shm. If the folder can not be created, Open MPI uses its
/// default.
void Job::share_memory_in_a_folder() {
  if (in_containers()) return;
  const Result<std::string> shared = make_shared_memory_folder(folder_.path());
  if (!shared) return;
  for (const char* transport : {"vader", "sm"})
    pmix_env_.insert(pmix_env_.begin(),
                     fmt::format("OMPI_MCA_btl_{}_backing_directory={}", transport, *shared));
}

/// Without PMIx, each rank of an MPI program would believe that it is the whole job.
Result<> Job::check_without_pmix(const std::string& why) const {
  if (spec_.world_size == 1 || in_containers()) return {};
  const std::string folder =
      first_folder({spec_.work_dir, std::string(env_value(base_env_, "HOME"))});
  const std::string path(env_value(environment_of(*ranks_.front()), "PATH"));
  for (std::string program : program_candidates(spec_.argv[0], path)) {
    if (!program.starts_with('/')) program = folder + '/' + program;
    if (::access(program.c_str(), X_OK) != 0) continue;
    const auto needed = needed_libraries(program);
    const std::string library = needed ? mpi_library(*needed) : std::string();
    if (library.empty()) return {};
    return fail(ErrorCode::unsupported,
                fmt::format("{} is an MPI program (it needs {}), and MPI ranks can not be wired up "
                            "here: {}; or set runner.mpi = \"off\" to run it unconnected",
                            spec_.argv[0], library, why));
  }
  return {};
}

void Job::on_pmix_lost(std::string why) {
  start_sweep();  // its keeper may have been killed
  finalize_check_.give_up();
  if (exited_ < ranks_.size())
    send_error(ErrorCode::runner, std::move(why) + "; MPI ranks can not continue");
}

}  // namespace sortie::runner
