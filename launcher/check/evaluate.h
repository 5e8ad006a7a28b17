// Turns the reports of hosts into PASS, WARN and FAIL. Pure: uses no file, host or clock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/file_sample.h"
#include "common/base/result.h"
#include "launcher/check/report.h"

namespace sortie::launcher::check {

inline constexpr std::uint64_t kMiB = 1u << 20;

enum class Verdict { none, pass, warn, fail };  // none: could not be checked

std::string_view verdict_name(Verdict verdict);  // "-", "PASS", "WARN", "FAIL"

struct Finding {
  std::string check;
  Verdict verdict = Verdict::none;
  std::string reason;
  std::string fix;  // of WARN and FAIL
  bool operator==(const Finding&) const = default;
};

/// Expectations of a job whose ranks run in containers.
struct ContainerExpectations {
  std::string engine, image, pull, gpus, ipc;
  std::uint64_t shm_bytes = 0;
  std::vector<std::string> mounts;  // sources on the hosts
};

/// A path below {stage} that a job names: it is copied from this machine before ranks start.
struct StagedFile {
  std::string named;  // "{stage}/books.bin"
  std::string here;   // "/data/books.bin"
  std::string error;  // why it can not be staged; empty if it can
};

/// Expectations of a job with several sites.
struct SiteExpectations {
  std::int64_t port = 0;     // outer.port
  std::int64_t streams = 1;  // outer.streams
};

/// What a job expects of its hosts.
struct Expectations {
  std::string program;  // empty: no program was named, only hosts
  std::string mpi = "auto";
  std::string work_dir;  // runner.work_dir; empty: the key is not set
  std::string save_dir;
  std::vector<std::string> files;
  std::map<std::string, FileSample> local_files;  // the `files` that this machine has, too
  std::vector<StagedFile> staged;
  std::uint64_t staged_bytes = 0;  // total size of runner.stage
  std::size_t world_size = 0;
  bool bandwidth = false;
  bool allow_same_machine = false;
  bool over_transport = false;  // runner.transport reaches the hosts, not SSH
  /// trainer.device of Sortie's own trainer: "auto", "cuda" or "cpu"; empty for other programs.
  std::string device;
  bool ask_trainer = false;  // the trainer is on the hosts, and is asked for its devices
  bool one_gpu = false;      // all ranks of a host use one GPU: the user's CUDA_VISIBLE_DEVICES
  std::optional<ContainerExpectations> container;
  std::optional<SiteExpectations> sites;
  std::optional<std::int64_t> tunnel_port;  // set with runner.network.tunnel
};

struct Stage {
  std::string name;
  double ms = 0;
};

/// Everything that a check found out about one host.
struct HostResult {
  std::string host;
  std::string address;  // for connections from other hosts
  std::vector<int> slots;
  std::vector<Stage> stages;   // completed stages of the connection
  std::optional<Error> error;  // the check ended early: unreachable, lost or timed out
  bool reached = false;        // the runner has answered
  bool pushed = false;
  double clock_offset_ms = 0, clock_error_ms = 0;  // host minus launcher, and its maximum error
  std::vector<std::string> asked_peers;            // hosts that it was to reach
  std::string asked_bandwidth;                     // host that it was to send to
  HostReport report;
  std::string site;
  // Only for the host that represents its site: address and port for connections from the
  // representatives of other sites, and those of them that it was to reach.
  std::string site_address;
  std::uint64_t site_port = 0;
  std::string site_error;  // why it does not listen on that port
  std::vector<std::string> asked_links;
  std::string tunnel;        // description of the tunnel; empty without one
  std::string tunnel_error;  // why the tunnel failed
  std::string tunnel_rate;   // "to h2 94.1 Mbit/s"; empty if not measured
  std::string through;       // socket of the OpenSSH master that carried the connection
};

/// Names of the checks that apply to `expect`, in the order of the table.
std::vector<std::string> check_names(const Expectations& expect);

/// Returns one finding per host and check: result[host][check].
std::vector<std::vector<Finding>> evaluate(const std::vector<HostResult>& hosts,
                                           const Expectations& expect);

/// Returns the worst verdict.
Verdict worst(const std::vector<std::vector<Finding>>& findings);

// ---- the parts of evaluate() -------------------------------------------------------------------

Finding judge_ssh(const HostResult& host, const Expectations& expect);
Finding judge_clock(const HostResult& host);
Finding judge_cores(const HostResult& host);
Finding judge_memory(const HostResult& host);
Finding judge_memlock(const HostResult& host);
Finding judge_open_files(const HostResult& host, const Expectations& expect);
Finding judge_cgroup(const HostResult& host);
Finding judge_run_folder(const HostResult& host);
Finding judge_leftovers(const HostResult& host);
Finding judge_disk(const HostResult& host);
Finding judge_save_dir(const HostResult& host);
Finding judge_staged(const HostResult& host, const Expectations& expect);
Finding judge_shm(const HostResult& host);
Finding judge_port(const HostResult& host);
Finding judge_program(const HostResult& host, const Expectations& expect);

Finding judge_engine(const HostResult& host, const Expectations& expect);
Finding judge_image_disk(const HostResult& host);
Finding judge_gpu_runtime(const HostResult& host, const Expectations& expect);
Finding judge_mounts(const HostResult& host);
Finding judge_container_shm(const HostResult& host, const Expectations& expect);

/// Checks that compare hosts with each other. judge_reached() is judge_ssh() of each host, and
/// fails hosts that are the same machine.
std::vector<Finding> judge_reached(const std::vector<HostResult>& hosts,
                                   const Expectations& expect);
std::vector<Finding> judge_images(const std::vector<HostResult>& hosts, const Expectations& expect);
std::vector<Finding> judge_kernels(const std::vector<HostResult>& hosts);
std::vector<Finding> judge_gpus(const std::vector<HostResult>& hosts, const Expectations& expect);
std::vector<Finding> judge_trainer(const std::vector<HostResult>& hosts,
                                   const Expectations& expect);
std::vector<Finding> judge_files(const std::vector<HostResult>& hosts, const Expectations& expect);
std::vector<Finding> judge_mpi(const std::vector<HostResult>& hosts, const Expectations& expect);
std::vector<Finding> judge_network(const std::vector<HostResult>& hosts);
Finding judge_tunnel(const HostResult& host);
std::vector<Finding> judge_bandwidth(const std::vector<HostResult>& hosts);
std::vector<Finding> judge_sites(const std::vector<HostResult>& hosts, const Expectations& expect);

/// "1.5 GiB"
std::string size_text(std::uint64_t bytes);

}  // namespace sortie::launcher::check
