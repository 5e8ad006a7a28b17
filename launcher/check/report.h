// The facts that a host reports in a check, parsed from its CheckReports. A host is not trusted:
// texts are bounded and made printable, lists are bounded, numbers are validated, and unknown
// members are dropped.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::launcher::check {

/// A run whose ranks a host holds without a launcher.
struct HeldRun {
  std::string run_id;
  std::uint64_t seconds_left = 0;
};

struct HostFacts {
  std::string hostname, kernel, machine;  // kernel: release, "6.1.0-18-amd64"
  std::string machine_id;                 // equal for two names of one machine; empty = unknown
  std::uint64_t cpus = 0, memory_bytes = 0, available_bytes = 0;
  std::optional<std::uint64_t> memlock, open_files;  // nullopt: unlimited
  bool infiniband = false;
  std::string cgroup_error;
  bool cgroup_writable = false;
  std::string run_base, run_error;  // folder of the runs, or why a runner can not make it
  std::uint64_t runs_alive = 0, runs_left = 0, cgroups_left = 0;
  std::vector<HeldRun> without_launcher;  // among the living runs
  std::string ssh_address;                // address of its sshd, as seen by the last hop
  std::vector<std::string> addresses;     // "eth0 10.1.0.2/24"
};

struct FolderFacts {
  std::string role, path, at, error;
  bool exists = false, read_only = false, tried = false, writable = false;
  std::uint64_t free_bytes = 0, total_bytes = 0, free_inodes = 0, total_inodes = 0, sync_us = 0;
};

struct FileFacts {
  std::string path, error, hash;
  std::uint64_t size = 0;
};

struct ProgramFacts {
  std::string name, found, error;
  bool work_dir = false;
  std::vector<std::string> missing;  // libraries
};

struct MpiFacts {
  std::string pmix, pmix_error, mpi, mpi_error, error;
};

/// A GPU as nvidia-smi shows it. Numbers are 0 if it does not have the value.
struct OneGpu {
  std::string name, compute_capability;  // "9.0"
  std::uint64_t memory_mib = 0;
  std::uint64_t sm_clock_mhz = 0, max_sm_clock_mhz = 0;        // now, and the highest
  std::uint64_t app_clock_mhz = 0, default_app_clock_mhz = 0;  // application clocks
  std::uint64_t power_limit_w = 0, default_power_limit_w = 0;
  std::optional<bool> persistence;  // persistence mode
};

struct GpuFacts {
  std::uint64_t driver = 0, devices = 0, rocm = 0;  // as listed by the drivers
  std::string smi, smi_error;                       // path of nvidia-smi
  std::vector<OneGpu> gpus;                         // as listed by nvidia-smi
  std::string driver_version;                       // NVIDIA's, "580.65.06"; empty if unknown
};

/// A GPU that a rank may use, as sortie-train sees it.
struct TrainerGpu {
  std::string name;
  std::string problem;                   // why the trainer can not use it; empty if it can
  std::uint64_t compute_capability = 0;  // 90 = 9.0
  std::uint64_t clock_mhz = 0, memory_bytes = 0;
};

/// The answer of `sortie-train devices --json`. `error`: there is none, and why.
struct TrainerFacts {
  std::string error;
  std::string version, build, isa;   // build: hash of the program
  std::string driver_cuda;           // newest CUDA that the driver supports; "13.0"
  std::string cuda, cublaslt, nccl;  // empty if the module with the GPU code does not load
  std::string problem;               // why its ranks can use no GPU
  std::vector<TrainerGpu> gpus;
};

struct ContainerFacts {
  std::string client, version, problem, error;  // problem: absent | denied | root | stopped | other
  std::string root;                             // where the engine stores images
  std::string image_id, image_error;
  bool rootless = false, gpu_runtime = false, image_present = false;
  std::uint64_t free_bytes = 0, total_bytes = 0;
  std::vector<std::string> missing_mounts;  // "PATH: why"
};

struct PortFacts {
  std::uint64_t port = 0;
  std::string error;
};

struct PeerFacts {
  std::string name, error;
  std::uint64_t connect_us = 0, round_trip_us = 0, mtu = 0, own_mtu = 0;
  bool mtu_reported = false;
};

struct BandwidthFacts {
  std::string name, error;
  std::uint64_t bytes = 0, us = 0;
};

/// One direction of a link to a host of another site; `again`: retransmitted segments.
struct WayFacts {
  std::uint64_t bytes = 0, us = 0, segments = 0, again = 0;
};

struct LinkFacts {
  std::string name, error, rate_error;  // rate_error: reached, but the rate was not measured
  std::uint64_t round_trip_us = 0, mtu = 0, own_mtu = 0;
  bool mtu_reported = false;
  WayFacts out, back;
};

struct HostReport {
  std::optional<HostFacts> host;
  std::vector<FolderFacts> folders;
  std::vector<FileFacts> files;
  std::optional<ProgramFacts> program;
  std::optional<MpiFacts> mpi;
  std::optional<GpuFacts> gpus;
  std::optional<TrainerFacts> trainer;
  std::optional<PortFacts> port;
  std::optional<ContainerFacts> container;
  std::optional<std::uint64_t> listen_port;
  std::string listen_error;
  std::optional<std::int64_t> clock_us;  // the latest one
  std::vector<PeerFacts> peers;
  std::optional<BandwidthFacts> bandwidth;
  std::vector<LinkFacts> links;      // to hosts of other sites
  std::string at;                    // what the host was about to examine
  std::string done;                  // kind of the last request whose answer is complete
  std::size_t parts = 0, bytes = 0;  // received so far
};

inline constexpr std::size_t kMaxReportBytes = 256u << 10;
inline constexpr std::size_t kMaxReportParts = 8192;
inline constexpr std::size_t kMaxReportTotal = 8u << 20;  // bytes of all parts of a host

/// Adds one CheckReport. ErrorCode::protocol if it is malformed or exceeds a limit.
Result<> add_part(HostReport& report, std::string_view json);

}  // namespace sortie::launcher::check
