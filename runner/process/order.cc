#include "runner/process/order.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

namespace sortie::runner {
namespace {

constexpr std::size_t kMaxSpec = 64u << 20;
/// A spec up to this size is sent in the packet itself, a larger one in a file.
constexpr std::size_t kMaxInline = 16u << 10;

/// Says which descriptors come with an order, in this sequence: file of the spec, stdout, stderr,
/// and the optional ones below.
struct OrderHead {
  std::uint32_t magic = 0x5b0c5b0e;
  std::uint32_t inline_bytes = 0;  // size of the spec after the head; 0 = it is in the file
  std::uint32_t has_control = 0, has_stdin = 0, has_program = 0;
  std::size_t descriptors() const {
    return (inline_bytes == 0 ? 3u : 2u) + has_control + has_stdin + has_program;
  }
};
constexpr std::size_t kMaxDescriptors = 6;

void put(std::string& bytes, std::uint64_t number) {
  char raw[sizeof number];
  std::memcpy(raw, &number, sizeof number);
  bytes.append(raw, sizeof raw);
}
void put(std::string& bytes, const std::string& text) {
  put(bytes, text.size());
  bytes += text;
}
void put(std::string& bytes, const std::vector<std::string>& texts) {
  put(bytes, texts.size());
  for (const std::string& text : texts) put(bytes, text);
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  bool ok() const { return ok_ && bytes_.empty(); }

  std::uint64_t number() {
    std::uint64_t value = 0;
    if (bytes_.size() < sizeof value) {
      ok_ = false;
      bytes_ = {};
      return 0;
    }
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return value;
  }
  std::string text() {
    const std::uint64_t size = number();
    if (size > bytes_.size()) {
      ok_ = false;
      bytes_ = {};
      return {};
    }
    std::string value(bytes_.substr(0, size));
    bytes_.remove_prefix(size);
    return value;
  }
  std::vector<std::string> texts() {
    std::vector<std::string> values;
    for (std::uint64_t left = number(); left > 0 && ok_; --left) values.push_back(text());
    return values;
  }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

/// Error of a receive: no message yet, or the other side is gone.
std::unexpected<Error> not_received(ssize_t count, int error) {
  if (count < 0 && (error == EAGAIN || error == EINTR))
    return fail(ErrorCode::timeout, "nothing has come");
  return fail(ErrorCode::lost, count < 0 ? std::strerror(error) : "the other side is gone");
}

Result<std::string> content_of(int file) {
  struct stat info {};
  if (::fstat(file, &info) != 0 || info.st_size < 0 ||
      static_cast<std::size_t>(info.st_size) > kMaxSpec)
    return fail(ErrorCode::protocol, "an order without a file");
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  if (::pread(file, bytes.data(), bytes.size(), 0) != info.st_size)
    return fail(ErrorCode::protocol, "an order cut short");
  return bytes;
}

Result<Fd> file_of(std::string_view bytes) {
  Fd file(::memfd_create("sortie-order", MFD_CLOEXEC));
  if (!file) return std::unexpected(os_error(errno, "memfd_create", ErrorCode::spawn));
  while (!bytes.empty()) {
    const ssize_t count = ::write(file.get(), bytes.data(), bytes.size());
    if (count < 0) return std::unexpected(os_error(errno, "memfd", ErrorCode::spawn));
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return file;
}

/// Returns errno, 0 on success.
int send_within(int socket, const msghdr& packet, std::chrono::milliseconds limit) {
  using std::chrono::steady_clock;
  const auto until = steady_clock::now() + limit;
  while (::sendmsg(socket, &packet, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    const int error = errno;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - steady_clock::now());
    if (error != EAGAIN || left.count() <= 0) return error;
    pollfd polled{socket, POLLOUT, 0};
    ::poll(&polled, 1, static_cast<int>(left.count()));
  }
  return 0;
}

}  // namespace

std::string encode_spec(const HeldSpec& spec) {
  std::string bytes;
  put(bytes, spec.title);
  for (const auto* texts : {&spec.candidates, &spec.argv, &spec.env, &spec.folders})
    put(bytes, *texts);
  for (const auto* text : {&spec.run_folder, &spec.cgroup, &spec.job_cgroup}) put(bytes, *text);
  put(bytes, std::uint64_t{spec.defaults.umask});
  for (const bool flag : {spec.detaches, spec.announce, spec.refuse_mpi})
    put(bytes, std::uint64_t{flag});
  put(bytes, spec.cpus.size());
  for (const std::uint32_t cpu : spec.cpus) put(bytes, std::uint64_t{cpu});
  return bytes;
}

Result<HeldSpec> decode_spec(std::string_view bytes) {
  Reader reader(bytes);
  HeldSpec spec;
  spec.title = reader.text();
  for (auto* texts : {&spec.candidates, &spec.argv, &spec.env, &spec.folders})
    *texts = reader.texts();
  for (auto* text : {&spec.run_folder, &spec.cgroup, &spec.job_cgroup}) *text = reader.text();
  spec.defaults.umask = static_cast<mode_t>(reader.number());
  for (bool* flag : {&spec.detaches, &spec.announce, &spec.refuse_mpi})
    *flag = reader.number() != 0;
  for (std::uint64_t left = std::min<std::uint64_t>(reader.number(), cpu::kMaxCpus); left > 0;
       --left)
    spec.cpus.push_back(static_cast<std::uint32_t>(reader.number()));
  if (!reader.ok() || spec.argv.empty()) return fail(ErrorCode::protocol, "a broken order");
  return spec;
}

Result<> send_order(int socket, const HeldSpec& spec, int control,
                    std::chrono::milliseconds limit) {
  std::string bytes = encode_spec(spec);
  OrderHead head;
  Fd file;
  if (bytes.size() <= kMaxInline) {
    head.inline_bytes = static_cast<std::uint32_t>(bytes.size());
  } else {
    SORTIE_ASSIGN_OR_RETURN(file, file_of(bytes));
  }
  int fds[kMaxDescriptors];
  std::size_t count = 0;
  const auto add = [&](int fd) -> std::uint32_t {
    if (fd < 0) return 0;
    fds[count++] = fd;
    return 1;
  };
  add(file.get());
  add(spec.stdout_fd);
  add(spec.stderr_fd);
  head.has_control = add(control);
  head.has_stdin = add(spec.stdin_fd);
  head.has_program = add(spec.program_fd);

  alignas(cmsghdr) char space[CMSG_SPACE(sizeof fds)] = {};
  iovec body[] = {{&head, sizeof head}, {bytes.data(), head.inline_bytes}};
  msghdr packet{};
  packet.msg_iov = body;
  packet.msg_iovlen = std::size(body);
  packet.msg_control = space;
  packet.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* part = CMSG_FIRSTHDR(&packet);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(count * sizeof(int));
  std::memcpy(CMSG_DATA(part), fds, count * sizeof(int));
  if (const int error = send_within(socket, packet, limit); error != 0)
    return std::unexpected(os_error(error, "no order is accepted", ErrorCode::spawn));
  return {};
}

Result<Order> receive_order(int socket) {
  OrderHead head;
  char inlined[kMaxInline];
  alignas(cmsghdr) char space[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  iovec body[] = {{&head, sizeof head}, {inlined, sizeof inlined}};
  msghdr packet{};
  packet.msg_iov = body;
  packet.msg_iovlen = std::size(body);
  packet.msg_control = space;
  packet.msg_controllen = sizeof space;
  const ssize_t count = ::recvmsg(socket, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count <= 0) return not_received(count, errno);
  std::vector<Fd> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&packet); part; part = CMSG_NXTHDR(&packet, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; CMSG_LEN((at + 1) * sizeof(int)) <= part->cmsg_len; ++at) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + at * sizeof(int), sizeof fd);
      fds.emplace_back(fd);
    }
  }
  if (static_cast<std::size_t>(count) < sizeof head || head.magic != OrderHead{}.magic ||
      static_cast<std::size_t>(count) != sizeof head + head.inline_bytes ||
      fds.size() != head.descriptors())
    return fail(ErrorCode::protocol, "not an order");
  std::string bytes(inlined, head.inline_bytes);
  auto next = fds.begin();
  if (head.inline_bytes == 0) {
    SORTIE_ASSIGN_OR_RETURN(bytes, content_of((next++)->get()));
  }
  Order order;
  SORTIE_ASSIGN_OR_RETURN(order.spec, decode_spec(bytes));
  order.spec.stdout_fd = (next++)->get();
  order.spec.stderr_fd = (next++)->get();
  if (head.has_control) order.control = std::move(*next++);
  if (head.has_stdin) order.spec.stdin_fd = (next++)->get();
  if (head.has_program) {
    order.spec.program_fd = (next++)->get();
    order.spec.candidates = {fmt::format("/proc/self/fd/{}", order.spec.program_fd)};
  }
  order.descriptors = std::move(fds);
  return order;
}

Result<Order> await_order(int socket, std::chrono::milliseconds limit) {
  pollfd polled{socket, POLLIN, 0};
  ::poll(&polled, 1, static_cast<int>(limit.count()));
  return receive_order(socket);
}

}  // namespace sortie::runner
