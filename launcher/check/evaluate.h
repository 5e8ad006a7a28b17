// From what the hosts said to PASS, WARN and FAIL. Pure: no file, host or clock is touched.
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

enum class Verdict { none, pass, warn, fail };  // none: could not be looked at

std::string_view verdict_name(Verdict verdict);  // "-", "PASS", "WARN", "FAIL"

struct Finding {
  std::string check;
  Verdict verdict = Verdict::none;
  std::string reason;
  std::string fix;  // of WARN and FAIL
  bool operator==(const Finding&) const = default;
};

/// Of a job whose ranks run in containers.
struct ContainerExpectations {
  std::string engine, image, pull, gpus, ipc;
  std::uint64_t shm_bytes = 0;
  std::vector<std::string> mounts;  // on the hosts
};

/// What a job names below {stage}: it comes from this machine, before ranks start.
struct StagedFile {
  std::string named;  // "{stage}/books.bin"
  std::string here;   // "/data/books.bin"
  std::string error;  // why it can not be staged; empty = it can
};

/// Of a job whose hosts are in several sites.
struct SiteExpectations {
  std::int64_t port = 0;     // outer.port
  std::int64_t streams = 1;  // outer.streams
};

/// What is asked of the hosts.
struct Expectations {
  std::string program;  // empty: none was named, only hosts
  std::string mpi = "auto";
  std::string save_dir;
  std::vector<std::string> files;
  std::map<std::string, FileSample> local_files;  // of `files`, those that the launcher has too
  std::vector<StagedFile> staged;
  std::uint64_t staged_bytes = 0;  // of all that runner.stage has
  std::size_t world_size = 0;
  bool bandwidth = false;
  bool allow_same_machine = false;
  std::optional<ContainerExpectations> container;
  std::optional<SiteExpectations> sites;
  std::optional<std::int64_t> tunnel_port;  // of runner.network.tunnel
};

struct Stage {
  std::string name;
  double ms = 0;
};

/// One host as it was found.
struct HostResult {
  std::string host;
  std::string address;  // at which others are to reach it
  std::vector<int> slots;
  std::vector<Stage> stages;   // of the connection, those that were passed
  std::optional<Error> error;  // it ended early: not reached, gone, late
  bool reached = false;        // the runner spoke
  bool pushed = false;
  double clock_offset_ms = 0, clock_error_ms = 0;  // host minus launcher, and how far off at most
  std::vector<std::string> asked_peers;            // whom it was to reach
  std::string asked_bandwidth;                     // the peer it was to send to
  HostReport report;
  std::string site;
  // Of the host that stands for its site: where those of the others reach it, on which port, and
  // which of them it was to reach.
  std::string site_address;
  std::uint64_t site_port = 0;
  std::string site_error;  // why it does not listen there
  std::vector<std::string> asked_links;
  std::string tunnel;        // what there is of one
  std::string tunnel_error;  // why there is none
  std::string tunnel_rate;   // "to h2 94.1 Mbit/s", where that was measured
  std::string through;       // the socket of the OpenSSH master that it was reached through
};

/// The checks in the order of the table, those that apply to `expect`.
std::vector<std::string> check_names(const Expectations& expect);

/// One finding per check and host: result[host][check].
std::vector<std::vector<Finding>> evaluate(const std::vector<HostResult>& hosts,
                                           const Expectations& expect);

/// The worst of all.
Verdict worst(const std::vector<std::vector<Finding>>& findings);

// ---- parts of it, a file each -------------------------------------------------------------------

Finding judge_ssh(const HostResult& host);
Finding judge_clock(const HostResult& host);
Finding judge_cores(const HostResult& host);
Finding judge_memory(const HostResult& host);
Finding judge_memlock(const HostResult& host);
Finding judge_open_files(const HostResult& host, const Expectations& expect);
Finding judge_cgroup(const HostResult& host);
Finding judge_leftovers(const HostResult& host);
Finding judge_disk(const HostResult& host);
Finding judge_save_dir(const HostResult& host);
Finding judge_staged(const HostResult& host, const Expectations& expect);
Finding judge_shm(const HostResult& host);
Finding judge_port(const HostResult& host);
Finding judge_program(const HostResult& host);

Finding judge_engine(const HostResult& host, const Expectations& expect);
Finding judge_image_disk(const HostResult& host);
Finding judge_gpu_runtime(const HostResult& host, const Expectations& expect);
Finding judge_mounts(const HostResult& host);
Finding judge_container_shm(const HostResult& host, const Expectations& expect);

/// Those that compare hosts with each other.
/// judge_ssh of each, and that no two are one machine.
std::vector<Finding> judge_reached(const std::vector<HostResult>& hosts,
                                   const Expectations& expect);
std::vector<Finding> judge_images(const std::vector<HostResult>& hosts, const Expectations& expect);
std::vector<Finding> judge_kernels(const std::vector<HostResult>& hosts);
std::vector<Finding> judge_gpus(const std::vector<HostResult>& hosts);
std::vector<Finding> judge_files(const std::vector<HostResult>& hosts, const Expectations& expect);
std::vector<Finding> judge_mpi(const std::vector<HostResult>& hosts, const Expectations& expect);
std::vector<Finding> judge_network(const std::vector<HostResult>& hosts);
Finding judge_tunnel(const HostResult& host);
std::vector<Finding> judge_bandwidth(const std::vector<HostResult>& hosts);
std::vector<Finding> judge_sites(const std::vector<HostResult>& hosts, const Expectations& expect);

/// "1.5 GiB"
std::string size_text(std::uint64_t bytes);

}  // namespace sortie::launcher::check
