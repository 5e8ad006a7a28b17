#include "trainer/data/gzip_reader.h"

#include <fmt/core.h>
#include <zlib.h>

#include <algorithm>
#include <limits>

#include "common/base/check.h"

namespace sortie::trainer {

struct GzipReader::State {
  std::span<const std::byte> bytes;
  std::string name;
  z_stream stream{};
  std::size_t used = 0;
  bool in_member = true;
};

GzipReader::GzipReader(std::span<const std::byte> bytes, std::string name)
    : state_(std::make_unique<State>()) {
  state_->bytes = bytes;
  state_->name = std::move(name);
  constexpr int kGzipOnly = 16;  // added to the window bits: accept gzip headers only
  const int made = inflateInit2(&state_->stream, MAX_WBITS + kGzipOnly);
  SORTIE_CHECK(made == Z_OK, "inflateInit2: {}", made);
}

GzipReader::GzipReader(GzipReader&&) noexcept = default;

GzipReader::~GzipReader() {
  if (state_) inflateEnd(&state_->stream);
}

bool GzipReader::is_gzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

bool GzipReader::at_end() const {
  return !state_->in_member && state_->used == state_->bytes.size();
}

std::size_t GzipReader::position() const {
  return state_->used;
}

Result<> GzipReader::read(std::size_t bytes, std::string& out) {
  State& state = *state_;
  const std::size_t target = out.size() + bytes;
  const auto broken = [&](std::string_view why) {
    return fail(ErrorCode::data, fmt::format("{}: broken gzip file at byte {}: {}; fetch it again",
                                             state.name, state.used, why));
  };
  std::size_t size = out.size();
  out.resize(target);
  while (size < target && !at_end()) {
    if (!state.in_member) {
      // Trailing zeros are allowed (padding of tape blocks). Anything else must be another member.
      const auto rest = state.bytes.subspan(state.used);
      if (std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == std::byte{0}; })) {
        state.used = state.bytes.size();
        break;
      }
      if (!is_gzip(rest)) return broken("there is invalid data after a member");
      inflateReset(&state.stream);
      state.in_member = true;
    }
    constexpr std::size_t kMost = std::numeric_limits<uInt>::max();
    const std::size_t in = std::min(state.bytes.size() - state.used, kMost);
    const std::size_t room = std::min(target - size, kMost);
    // zlib does not write to its input, but its interface does not say so.
    state.stream.next_in =
        const_cast<Bytef*>(reinterpret_cast<const Bytef*>(state.bytes.data() + state.used));
    state.stream.avail_in = static_cast<uInt>(in);
    state.stream.next_out = reinterpret_cast<Bytef*>(out.data() + size);
    state.stream.avail_out = static_cast<uInt>(room);
    const int code = inflate(&state.stream, Z_NO_FLUSH);
    state.used += in - state.stream.avail_in;
    size += room - state.stream.avail_out;
    if (code == Z_STREAM_END) {
      state.in_member = false;
    } else if (code == Z_BUF_ERROR ||
               (code == Z_OK && state.used == state.bytes.size() && state.stream.avail_out > 0)) {
      return broken("it ends inside of a member");
    } else if (code != Z_OK) {
      return broken(state.stream.msg != nullptr ? state.stream.msg : "not deflate data");
    }
  }
  out.resize(size);
  return {};
}

}  // namespace sortie::trainer
