#include "launcher/trackers/tensorboard.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/crc.hpp>
#include <cerrno>
#include <protozero/pbf_writer.hpp>

#include "common/base/host_name.h"

namespace sortie::launcher {
namespace {

std::uint32_t masked_crc(std::string_view bytes) {
  // Castagnoli polynomial. The mask keeps CRCs of data that contains CRCs useful.
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  const std::uint32_t value = crc.checksum();
  return ((value >> 15) | (value << 17)) + 0xa282ead8u;
}

template <class T>
std::string little_endian(T value) {
  std::string out;
  for (std::size_t i = 0; i < sizeof value; ++i)
    out.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
  return out;
}

std::string record(const std::string& event) {
  const std::string length = little_endian<std::uint64_t>(event.size());
  return length + little_endian(masked_crc(length)) + event + little_endian(masked_crc(event));
}

}  // namespace

std::string tensorboard_header(double wall_time) {
  std::string event;
  protozero::pbf_writer writer(event);
  writer.add_double(1, wall_time);
  writer.add_string(3, "brain.Event:2");
  return record(event);
}

std::string tensorboard_scalar(double wall_time, std::int64_t step, std::string_view tag,
                               float value) {
  std::string event;
  protozero::pbf_writer writer(event);
  writer.add_double(1, wall_time);
  writer.add_int64(2, step);
  {
    protozero::pbf_writer summary(writer, 5);
    protozero::pbf_writer entry(summary, 1);
    entry.add_string(1, tag.data(), tag.size());
    entry.add_float(2, value);
  }
  return record(event);
}

Result<TensorBoardWriter> TensorBoardWriter::create(const std::filesystem::path& folder,
                                                    double wall_time) {
  ::mkdir(folder.c_str(), 0700);  // an error shows below when the file is opened
  TensorBoardWriter writer;
  writer.path_ =
      folder / fmt::format("events.out.tfevents.{:010d}.{}.{}.0",
                           static_cast<std::int64_t>(wall_time), host_name("host"), ::getpid());
  writer.file_.reset(::open(writer.path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!writer.file_) return std::unexpected(os_error(errno, writer.path_.string()));
  SORTIE_TRY(writer.write(tensorboard_header(wall_time)));
  return writer;
}

Result<> TensorBoardWriter::add_scalar(double wall_time, std::int64_t step, std::string_view tag,
                                       double value) {
  return write(tensorboard_scalar(wall_time, step, tag, static_cast<float>(value)));
}

Result<> TensorBoardWriter::write(const std::string& bytes) {
  // One write per record, so that a reader sees a partial record at most briefly. A record that
  // does not fit is removed, because a partial record would hide all that follow.
  const off_t before = ::lseek(file_.get(), 0, SEEK_END);
  const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
  if (count == static_cast<ssize_t>(bytes.size())) return {};
  const int error = count < 0 ? errno : ENOSPC;
  if (count > 0 && ::ftruncate(file_.get(), before) != 0)
    return std::unexpected(os_error(errno, path_.string()));
  return std::unexpected(os_error(error, path_.string()));
}

}  // namespace sortie::launcher
