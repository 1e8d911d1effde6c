#include "server/start/kv_check.h"

namespace tessera {

std::string_view kv_check_text() {
  return R"(The harbour office kept three ledgers. The first recorded every ship by the hour at which
its lamp was seen from the tower, and the clerk who wrote it was paid by the line. The second listed
cargo: salt, rope, copper wire, eleven crates of lemons that nobody had ordered, and once a piano
without its pedals. The third was locked. When Marta took over in the spring of 1911 she was given
two keys and told that the third book held only the names of people who owed the town a favour.

She opened it in June. On page 40 stood a ferryman, Tomas Weil, who had carried the doctor across
during the flood and refused the coins. Below him someone had added, in green ink, "repaid, with
eggs". The last entry was her own father's. It said nothing but a date, the fourth of March, and the
number 7316. For a week she asked the old men on the pier what had happened on that day; each of
them remembered a different storm.

| ship        | arrived | cargo            | tonnes |
|-------------|---------|------------------|--------|
| Anna Luise  | 04:10   | salt, rope       | 182    |
| Northern 5  | 06:45   | copper wire      | 97     |
| Quiet Hope  | 13:30   | lemons, a piano  | 64     |

def arrivals(lines, since=0):
    """Yields (name, minute, tonnes) for each ship that arrived after `since`."""
    for line in lines:
        name, clock, cargo, tonnes = [part.strip() for part in line.split("|")[1:5]]
        hours, minutes = clock.split(":")
        minute = 60 * int(hours) + int(minutes)
        if minute > since and tonnes.isdigit():
            yield name, minute, int(tonnes)

total = sum(tonnes for _, _, tonnes in arrivals(open("ledger.txt"), since=300))
print(f"{total} tonnes after five o'clock")

Question: which ship brought the lemons, and how many tonnes arrived before noon?
Answer: the Quiet Hope brought the lemons. Before noon the Anna Luise and the Northern 5 brought 182
and 97 tonnes, which makes 279.
)";
}

}  // namespace tessera
