# Writes PAGE as a C++ array into OUT: a raw string literal would be limited to 64 KiB.
file(READ ${PAGE} bytes HEX)
string(LENGTH "${bytes}" digits)
math(EXPR size "${digits} / 2")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
file(WRITE ${OUT} "#include \"server/web/chat_page.h\"
namespace tessera {
namespace {
constexpr char kPage[] = {${bytes}};
}
std::string_view chat_page() { return {kPage, ${size}}; }
}
")
