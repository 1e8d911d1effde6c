#include "eval/tasks/held_out_text.h"

namespace tessera {
namespace {

constexpr std::string_view kText =
    R"(Once upon a time there was a baker who could not sleep. Every night he lay in bed and listened
to the clock on the wall. One night he got up, lit the lamp and began to bake. He made a loaf of
bread in the shape of a moon. In the morning a little girl came into the shop. She saw the moon
on the table and laughed. "May I have the moon, please?" she asked. The baker gave it to her and
would not take her coin. That night he slept well, because he knew that the moon had a good
home.

Tim had a red kite. He liked to run with it on the hill behind his house. One day the wind was
very strong. The kite pulled and pulled, and the string slipped out of his hand. Up it went,
over the trees and over the river. Tim was sad and sat down on a stone. Then an old man came up
the path with something red under his arm. "I found this on my roof," he said. "I think it
wanted to see the town." Tim thanked him, and from that day on he tied the string around his
wrist.

The lighthouse stood at the end of a long wall of stones. Nobody had lived in it for years, and
the children of the village said that a ghost lit the lamp on stormy nights. Mara did not
believe in ghosts. She took her father's lantern, put on her thick coat and walked out along the
wall. The waves threw water over her shoes. Inside, at the top of the stairs, she found no ghost
at all. She found a cat, three kittens, and a broken window through which the light of the moon
fell on the old glass.

Sam and Lucy wanted to build a house for the birds. They found some wood in the garage and asked
their mother for nails. Sam held the wood and Lucy used the hammer. At first the roof was not
straight, and they both laughed. Then they painted it blue and put it in the apple tree. For
many days no bird came. Lucy said that they must wait. One morning they heard a song, and there
was a small brown bird at the door of the blue house.

It was raining when the train stopped between two stations. The people in the carriage looked up
from their papers, and then down again. Only the boy by the window kept looking. In the field
beside the track stood a horse, quite still, with the water running down its back. It looked at
the boy and the boy looked at it. He breathed on the glass and drew a horse in the mist. When
the train began to move, the horse walked a few steps beside it, as if it wanted to say goodbye.

There was once a king who had a garden full of clocks. Some of them were made of gold, and some
of wood, and one was made of flowers that opened and closed. The king was proud of them, but no
two of them showed the same time. "Which of them is right?" he asked the gardener. "The one made
of flowers," said the gardener. "It does not know the hour, but it always knows when the day
begins." The king thought about this for a long time. Then he gave all the other clocks away.

Ben was afraid of the dark. Every evening he asked his big sister to leave the door open. One
evening the lamp in the hall was broken, and it was dark everywhere. Ben pulled the blanket over
his head. "Come to the window," said his sister. She took his hand and they looked out. The sky
was full of stars. "You can only see them when it is dark," she said. Ben looked at them for a
long time, and then he went back to bed without being afraid.

The old teacher put a box on the table. "There is something in this box that all of you have,"
he said, "and none of you has ever seen it." The children shook the box. It made no sound. They
smelled it, and it smelled of nothing but wood. Anna thought and thought. "Is it a secret?" she
asked at last. "No," said the teacher. "Is it air?" asked Paul. The teacher smiled and opened
the lid. Inside lay a small mirror. Each of them looked into it and saw what only others had
seen before.

A frog lived in a pond near the road. He wanted to jump higher than all the other frogs. Every
day he jumped over a leaf, and then over a stone, and then over a log. The other frogs laughed
at him. "What is it good for?" they asked. One hot summer the pond became smaller and smaller.
Around it there was a wall that nobody could climb. The frog took a long run, jumped on the
wall, and found a branch to pull the others out. After that nobody laughed.

My grandmother kept her letters in a tin that had once been full of biscuits. When the winter
evenings were long she took them out and read to us. There was a letter from a sailor who had
seen a whale asleep, and one from a cousin who had planted a wood where there had been nothing
but sand. We knew them all by heart, and yet we asked for them again. When I was grown I looked
into the tin. Most of the sheets were empty. She had made up the letters for us as she went
along.

Lily found a little key in the grass. It was made of silver and no longer than her thumb. She
tried it in the front door, but it was too small. She tried it in her toy box, but it was too
big. "What does it open?" she asked her dad. He did not know. Lily put the key on a string and
wore it around her neck. A week later a new girl came to her school. She had a little silver
box, and she had lost the key. Lily opened the box for her. Inside was a tiny dancer, and from
that day the two girls were friends.

The fisherman had not caught anything for three days. On the fourth day there was a bottle in
his net, and in the bottle was a piece of paper. He could not read, so he took it to the doctor.
"It says that somebody is very lonely," said the doctor, "and that he lives on the island with
the two trees." The fisherman turned his boat at once. On the island he found a man with a long
beard who had waited for seven years. They shared the last of the bread, and in the evening the
net was full.

Once there was a small cloud who did not want to rain. "If I rain, I will be gone," she said to
the wind. So she went over the fields, and the fields were dry. She went over the town, and the
people looked up and waited. Then she came to a garden with one yellow flower in it. The flower
hung its head. The small cloud felt so sorry that she began to cry, and her tears fell on the
flower. It lifted its head. The cloud became smaller and smaller, but she was not sad at all.
The next day the sun took her up again from the sea.

When the snow came, the road to the mountain farm was closed. The family had wood, and flour,
and four cows in the stable, and they were not worried. But in the second week the youngest
child became ill. The father put on his skis and went down to the valley in the night. He was
gone for two days. On the third morning they saw two dark points far below on the white slope.
One was the father. The other was the doctor, who was seventy years old and had never stood on
skis before.

Max the dog had a bone, and he wanted to hide it. He dug a hole under the old tree, but there
was already a bone in it. He dug a hole beside the fence, and there was a bone in it, too. He
dug a hole in the middle of the flowers. This time there was no bone, but there was a very angry
woman with a broom. Max ran away with the bone in his mouth. In the end he put it under the
pillow in the bed of the boy he loved most.

Two brothers had a mill at the river, and they could not agree on anything. When one wanted to
grind, the other wanted to rest. At last they painted a white line through the middle of the
mill, and each of them stayed on his side. But the wheel was on one side and the stones were on
the other. For a whole month the mill stood still, and the people carried their corn to the next
village. Then there came a flood, and it washed the white line away. The brothers looked at the
wet floor, and one of them began to laugh.

The moon came up over the roofs, and the cats came out. There was a black one from the bakery, a
grey one from the church, and a white one that belonged to nobody. They met on the highest roof
of the street. "What did you see today?" asked the black cat. "I saw a man who was looking for
his glasses," said the grey cat. "They were on his head." "I saw a woman give her umbrella to a
stranger," said the white cat. "And I saw a mouse," said the black cat, "but I was too full to
run." They thought that it had been a good day.

Nora wanted to be the first who touched the new snow. She got up before everybody else, and
opened the door without a sound. But in the middle of the garden there was already a row of tiny
prints. She followed them past the shed, and through the hole in the fence, and down to the
frozen pond. There sat a hare with his ears up high. He did not run. The two of them looked at
the white field, on which nobody had stepped yet, and then they both went home again by the way
they had come.

The music teacher was deaf in one ear and nearly deaf in the other. Still he could tell which of
his pupils had practised. "How do you know?" they asked him. He laid his hand flat on the lid of
the piano. "I hear it with this," he said. When he was very old, his pupils gave a concert for
him. They did not put his chair in front of them, as one does with guests. They put it so close
to the piano that he could lean on it, and all evening his hand did not leave the wood.

A small blue boat lay on the beach, and nobody knew whose it was. Tom and his friend Mia climbed
into it and played that they were at sea. "I see an island!" cried Tom. "I see a big fish!"
cried Mia. They fished for shells with a stick and ate their bread. In the evening a man came
along the beach. It was his boat. Tom and Mia were afraid that he would be angry, but he only
asked how far they had gone. "Around the world," said Tom. "Then she is tired," said the man,
and he helped them to pull her up on the sand.
)";

constexpr std::string_view kWords[] = {
    "apple",   "river",    "candle",  "window", "garden", "silver",  "horse",   "letter",
    "bridge",  "winter",   "castle",  "needle", "bread",  "basket",  "bottle",  "box",
    "branch",  "brother",  "bucket",  "butter", "button", "cake",    "carpet",  "chair",
    "cheese",  "church",   "circle",  "clock",  "cloud",  "coat",    "corner",  "cow",
    "cup",     "dance",    "doctor",  "dog",    "door",   "dress",   "drum",    "duck",
    "ear",     "earth",    "egg",     "farm",   "father", "feather", "fence",   "field",
    "finger",  "fire",     "fish",    "flag",   "floor",  "flower",  "forest",  "fox",
    "friend",  "frog",     "fruit",   "game",   "gate",   "gift",    "girl",    "glass",
    "goat",    "gold",     "grass",   "hand",   "hat",    "heart",   "hill",    "honey",
    "hope",    "house",    "ice",     "island", "jacket", "jar",     "juice",   "king",
    "kitchen", "kite",     "knife",   "ladder", "lake",   "lamp",    "leaf",    "lemon",
    "lion",    "market",   "milk",    "mirror", "monkey", "moon",    "mother",  "mountain",
    "mouse",   "mouth",    "music",   "nest",   "night",  "nose",    "ocean",   "orange",
    "owl",     "page",     "paint",   "paper",  "park",   "party",   "path",    "pencil",
    "piano",   "picture",  "pig",     "pillow", "plate",  "pocket",  "pond",    "potato",
    "prince",  "puppy",    "queen",   "rabbit", "rain",   "ribbon",  "ring",    "road",
    "robot",   "rock",     "roof",    "room",   "rope",   "rose",    "sand",    "school",
    "sea",     "seed",     "sheep",   "shell",  "ship",   "shirt",   "shoe",    "shop",
    "sister",  "sky",      "smile",   "snake",  "snow",   "song",    "soup",    "spoon",
    "spring",  "squirrel", "star",    "stick",  "stone",  "storm",   "story",   "street",
    "string",  "sugar",    "summer",  "sun",    "table",  "tail",    "teacher", "tent",
    "thunder", "tiger",    "tower",   "town",   "toy",    "train",   "tree",    "truck",
    "turtle",  "uncle",    "village", "voice",  "wagon",  "wall",    "water",   "wave",
    "wheel",   "whale",    "wind",    "wing",   "wolf",   "wood",    "word",    "world",
    "yard",    "yellow",   "zebra",   "animal", "answer", "blanket"};

constexpr std::string_view kNames[] = {
    "Anna",    "Ben",    "Tom",     "Lucy",  "Sam",   "Mia",   "Max",   "Lily",   "Tim",
    "Sara",    "Jack",   "Jane",    "John",  "Mary",  "Alice", "Bob",   "Peter",  "Emma",
    "Jim",     "Kate",   "Paul",    "Helen", "Mark",  "Rose",  "Henry", "Grace",  "Fred",
    "Ann",     "George", "Molly",   "Billy", "Susan", "James", "Emily", "Robert", "Ruth",
    "William", "Sally",  "Charles", "Betty", "David", "Martha"};

// A single line break is typesetting and becomes a space. An empty line ends a story and becomes a
// line break.
std::string unwrap(std::string_view wrapped) {
  std::string text;
  for (size_t i = 0; i < wrapped.size(); ++i) {
    const bool breaks = wrapped[i] == '\n';
    const bool ends = breaks && i + 1 < wrapped.size() && wrapped[i + 1] == '\n';
    i += ends ? 1 : 0;
    text += breaks && !ends ? ' ' : wrapped[i];
  }
  text.back() = '\n';
  return text;
}

}  // namespace

const std::string& held_out_text() {
  static const std::string kUnwrapped = unwrap(kText);
  return kUnwrapped;
}

std::span<const std::string_view> everyday_words() {
  return kWords;
}

std::span<const std::string_view> first_names() {
  return kNames;
}

}  // namespace tessera
