#include "src/lowering/pickle_machine.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

#include "src/base/error.h"

namespace lowerd::lowering {
namespace {

// Bounds memory to about half a gigabyte; a vocabulary of a million words takes two million.
constexpr size_t kMaxValues = 10'000'000;

}  // namespace

// One pass over the opcodes, with a stack, marks and a memo.
class PickleParser {
 public:
  PickleParser(absl::string_view pickle, absl::string_view name)
      : whole_(pickle), rest_(pickle), name_(name) {}

  absl::StatusOr<PickleValues> Run() {
    while (true) {
      if (rest_.empty()) return Corrupt("ends without STOP");
      const char opcode = rest_.front();
      rest_.remove_prefix(1);
      if (opcode == '.') break;
      LOWERD_RETURN_IF_ERROR(Step(opcode));
      if (out_.values_.size() > kMaxValues) {
        return Corrupt(absl::StrCat("has more than ", kMaxValues, " values"));
      }
    }
    if (stack_.size() != 1 || !marks_.empty()) return Corrupt("does not end in one value");
    out_.root_ = stack_.back();
    return std::move(out_);
  }

 private:
  using Kind = PickleValues::Kind;
  using Index = PickleValues::Index;

  absl::Status Corrupt(absl::string_view what) const {
    return MakeError(Reason::kModelCorrupt,
                     absl::StrCat("the archive's ", name_, " is damaged: at byte ",
                                  whole_.size() - rest_.size(), " it ", what));
  }

  bool Take(size_t count, absl::string_view& out) {
    if (count > rest_.size()) return false;
    out = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return true;
  }
  template <typename T>
  bool TakeNumber(T& out) {
    absl::string_view bytes;
    if (!Take(sizeof out, bytes)) return false;
    std::memcpy(&out, bytes.data(), sizeof out);
    return true;
  }
  bool TakeLine(absl::string_view& out) {
    const size_t end = rest_.find('\n');
    if (end == absl::string_view::npos) return false;
    out = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return true;
  }

  void Push(PickleValues::Value value) {
    stack_.push_back(static_cast<Index>(out_.values_.size()));
    out_.values_.push_back(std::move(value));
  }
  void Push(Kind kind, int64_t number = 0) {
    PickleValues::Value value;
    value.kind = kind;
    value.number = number;
    Push(std::move(value));
  }
  // Above the top mark, if there is one.
  size_t Available() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }

  absl::Status PushTuple(size_t count) {
    if (Available() < count) return Corrupt("takes more values than there are");
    PickleValues::Value value;
    value.kind = Kind::kTuple;
    value.items.assign(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    Push(std::move(value));
    return absl::OkStatus();
  }

  // Moves everything above the top mark into the container below it.
  absl::Status Extend(Kind kind) {
    if (marks_.empty() || marks_.back() == 0) return Corrupt("adds to nothing");
    const size_t mark = marks_.back();
    marks_.pop_back();
    PickleValues::Value& container = out_.values_[stack_[mark - 1]];
    if (container.kind != kind) return Corrupt("adds to what is no container");
    container.items.insert(container.items.end(), stack_.begin() + static_cast<ptrdiff_t>(mark),
                           stack_.end());
    stack_.resize(mark);
    return absl::OkStatus();
  }

  absl::Status Text(size_t size) {
    PickleValues::Value value;
    value.kind = Kind::kString;
    if (!Take(size, value.text)) return Corrupt("has a string that is cut off");
    Push(std::move(value));
    return absl::OkStatus();
  }

  absl::Status Memoize(uint32_t key) {
    if (Available() == 0) return Corrupt("memoizes nothing");
    // Picklers number their memos one by one; PyTorch allocates up to the number that it reads.
    if (key > memo_.size()) return Corrupt(absl::StrCat("memoizes under the far number ", key));
    if (key == memo_.size()) {
      memo_.push_back(stack_.back());
    } else {
      memo_[key] = stack_.back();
    }
    return absl::OkStatus();
  }
  absl::Status Recall(uint32_t key) {
    if (key >= memo_.size()) return Corrupt("recalls what it never memoized");
    stack_.push_back(memo_[key]);
    return absl::OkStatus();
  }

  absl::Status Step(char opcode) {
    uint8_t byte;
    uint16_t two;
    uint32_t four;
    int32_t signed_four;
    switch (opcode) {
      case '\x80':  // PROTO
        return TakeNumber(byte) ? absl::OkStatus() : Corrupt("is cut off");
      case '(':  // MARK
        marks_.push_back(stack_.size());
        return absl::OkStatus();
      case 'N':
        Push(Kind::kNone);
        return absl::OkStatus();
      case '\x88':
      case '\x89':
        Push(Kind::kBool, opcode == '\x88');
        return absl::OkStatus();
      case 'K':
        if (!TakeNumber(byte)) return Corrupt("is cut off");
        Push(Kind::kInt, byte);
        return absl::OkStatus();
      case 'M':
        if (!TakeNumber(two)) return Corrupt("is cut off");
        Push(Kind::kInt, two);
        return absl::OkStatus();
      case 'J':
        if (!TakeNumber(signed_four)) return Corrupt("is cut off");
        Push(Kind::kInt, signed_four);
        return absl::OkStatus();
      case '\x8a': {  // LONG1
        absl::string_view bytes;
        if (!TakeNumber(byte) || byte > 8 || !Take(byte, bytes))
          return Corrupt("has an odd integer");
        uint64_t number = 0;
        for (size_t i = 0; i < bytes.size(); ++i) {
          number |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
        }
        if (!bytes.empty() && bytes.size() < 8 && (bytes.back() & 0x80) != 0) {
          number |= ~uint64_t{0} << (8 * bytes.size());
        }
        Push(Kind::kInt, static_cast<int64_t>(number));
        return absl::OkStatus();
      }
      case 'G': {  // BINFLOAT
        absl::string_view bytes;
        if (!Take(8, bytes)) return Corrupt("is cut off");
        Push(Kind::kFloat);
        return absl::OkStatus();
      }
      case 'X':  // BINUNICODE
        if (!TakeNumber(four)) return Corrupt("is cut off");
        return Text(four);
      case 'U':  // SHORT_BINSTRING
        if (!TakeNumber(byte)) return Corrupt("is cut off");
        return Text(byte);
      case 'T':  // BINSTRING
        if (!TakeNumber(four)) return Corrupt("is cut off");
        return Text(four);
      case ')':
        return PushTuple(0);
      case '\x85':
        return PushTuple(1);
      case '\x86':
        return PushTuple(2);
      case '\x87':
        return PushTuple(3);
      case 't': {  // TUPLE
        if (marks_.empty()) return Corrupt("makes a tuple without a mark");
        const size_t mark = marks_.back();
        marks_.pop_back();
        const size_t count = stack_.size() - mark;
        PickleValues::Value value;
        value.kind = Kind::kTuple;
        value.items.assign(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
        stack_.resize(mark);
        Push(std::move(value));
        return absl::OkStatus();
      }
      case ']':
        Push(Kind::kList);
        return absl::OkStatus();
      case '}':
        Push(Kind::kDict);
        return absl::OkStatus();
      case 'a':    // APPEND
      case 's': {  // SETITEM
        const size_t count = opcode == 'a' ? 1 : 2;
        if (Available() < count + 1) return Corrupt("adds to nothing");
        marks_.push_back(stack_.size() - count);
        return Extend(opcode == 'a' ? Kind::kList : Kind::kDict);
      }
      case 'e':
        return Extend(Kind::kList);
      case 'u':
        return Extend(Kind::kDict);
      case 'c': {  // GLOBAL
        PickleValues::Value value;
        value.kind = Kind::kGlobal;
        const absl::string_view begin = rest_;
        absl::string_view module, attribute;
        if (!TakeLine(module) || !TakeLine(attribute)) return Corrupt("has a name that is cut off");
        value.text = begin.substr(0, module.size() + 1 + attribute.size());
        Push(std::move(value));
        return absl::OkStatus();
      }
      case 'R':       // REDUCE
      case '\x81': {  // NEWOBJ
        if (Available() < 2) return Corrupt("calls nothing");
        PickleValues::Value value;
        value.kind = Kind::kReduced;
        value.items.assign(stack_.end() - 2, stack_.end());
        stack_.resize(stack_.size() - 2);
        Push(std::move(value));
        return absl::OkStatus();
      }
      case 'b': {  // BUILD
        if (Available() < 2) return Corrupt("builds nothing");
        const Index state = stack_.back();
        stack_.pop_back();
        // Anything else would change values that others were made of.
        PickleValues::Value& object = out_.values_[stack_.back()];
        if (object.kind != Kind::kReduced) return Corrupt("gives state to what is no object");
        object.items.push_back(state);
        return absl::OkStatus();
      }
      case 'Q': {  // BINPERSID
        if (Available() < 1) return Corrupt("has no persistent id");
        PickleValues::Value value;
        value.kind = Kind::kPersistent;
        value.items.push_back(stack_.back());
        stack_.pop_back();
        Push(std::move(value));
        return absl::OkStatus();
      }
      case 'q':
        if (!TakeNumber(byte)) return Corrupt("is cut off");
        return Memoize(byte);
      case 'r':
        if (!TakeNumber(four)) return Corrupt("is cut off");
        return Memoize(four);
      case 'h':
        if (!TakeNumber(byte)) return Corrupt("is cut off");
        return Recall(byte);
      case 'j':
        if (!TakeNumber(four)) return Corrupt("is cut off");
        return Recall(four);
      case '0':  // POP
        if (Available() == 0) return Corrupt("pops nothing");
        stack_.pop_back();
        return absl::OkStatus();
      default:
        return Corrupt(absl::StrCat("has opcode ", static_cast<int>(static_cast<uint8_t>(opcode)),
                                    ", which TorchScript never writes"));
    }
  }

  const absl::string_view whole_;
  absl::string_view rest_;
  const absl::string_view name_;
  PickleValues out_;
  std::vector<Index> stack_;
  std::vector<size_t> marks_;
  std::vector<Index> memo_;
};

absl::StatusOr<PickleValues> PickleValues::Parse(absl::string_view pickle, absl::string_view name) {
  return PickleParser(pickle, name).Run();
}

std::string PickleValues::GlobalName(const Value& value) {
  return absl::StrReplaceAll(value.text, {{"\n", "."}});
}

}  // namespace lowerd::lowering
