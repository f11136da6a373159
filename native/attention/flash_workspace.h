// Scratch memory that a thread keeps between calls: fresh pages would cost a tenth of the time on short documents.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oarlock {

class Workspace {
  public:
    Workspace() = default;
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;
    ~Workspace();

    // At least `count` floats, aligned to 64 bytes, with any content.
    float* get(int64_t count);

  private:
    float* data_ = nullptr;
    int64_t capacity_ = 0;
};

// For what one thread works on, and for what the calling thread shares with the others.
Workspace& own_workspace();
Workspace& shared_workspace();

}  // namespace oarlock
