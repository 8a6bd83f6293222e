"""Stories: a small grammar that tells stories of one animal each, and asks about them.

Everything is written for this repository. A story is one draw of its facts (who, where, which thing, who helped ...) told in
sentences chosen at random; the questions' answers are those facts, so that a model must look back to answer. Pure functions
of a random.Random.
"""

ANIMALS = ["fox", "bear", "rabbit", "mouse", "owl", "frog", "turtle", "squirrel", "duck", "goat", "cat", "dog", "hen", "otter",
           "badger", "pony", "lamb", "beaver", "crow", "hedgehog"]
NAMES = ["Mia", "Tom", "Lena", "Oskar", "Ruby", "Finn", "Nora", "Hugo", "Ella", "Max", "Ida", "Leo", "Pia", "Ben", "Zoe", "Sam",
         "Anna", "Otto", "Lily", "Jack", "Rosa", "Paul", "Eva", "Noah", "Tilda", "Emil", "Clara", "Felix", "Greta", "Theo"]
PLACES = ["in the forest", "by the river", "on a farm", "near the sea", "in a quiet valley", "on a green hill", "by a lake",
          "at the edge of the village", "in an old garden", "under a tall tree"]
COLORS = ["red", "blue", "green", "yellow", "white", "black", "golden", "silver", "purple", "orange"]
THINGS = ["ball", "kite", "lantern", "key", "hat", "book", "bell", "boat", "drum", "cup", "ring", "scarf", "basket", "button",
          "flute", "map", "stone", "feather", "wagon", "blanket"]
HIDDEN = ["under a big rock", "behind the mill", "in a hollow log", "on top of the hill", "in the tall grass",
          "under the old bridge", "beside the well", "in an empty nest", "behind the barn", "between two roots"]
FOODS = ["apples", "honey", "nuts", "soup", "bread", "berries", "cheese", "carrots", "cake", "pears"]
WEATHER = ["sunny", "rainy", "windy", "cold", "warm", "foggy", "snowy"]
MOODS = ["kind", "shy", "brave", "clever", "curious", "gentle", "quiet", "cheerful"]


class Story:
    """The facts of one story."""

    def __init__(self, random):
        self.animal, self.helper_animal = random.sample(ANIMALS, 2)
        self.name, self.helper = random.sample(NAMES, 2)
        self.place, self.color, self.thing = random.choice(PLACES), random.choice(COLORS), random.choice(THINGS)
        self.hidden, self.food = random.choice(HIDDEN), random.choice(FOODS)
        self.weather, self.mood = random.choice(WEATHER), random.choice(MOODS)

    def tell(self, random):
        s = self
        one = random.choice
        article = "an" if s.animal[0] in "aeiou" else "a"
        helper_article = "an" if s.helper_animal[0] in "aeiou" else "a"
        color_article = "an" if s.color[0] in "aeiou" else "a"
        return " ".join([
            one([f"Once upon a time there was {article} {s.animal} named {s.name}.",
                 f"There once was a {s.mood} {s.animal} named {s.name}.",
                 f"Long ago {article} {s.animal} named {s.name} lived {s.place}."]),
            one([f"{s.name} lived {s.place} and had {color_article} {s.color} {s.thing}.",
                 f"{s.name} was {s.mood} and loved {color_article} {s.color} {s.thing}.",
                 f"Of all things {s.name} loved {color_article} {s.color} {s.thing} the most."]),
            one([f"One {s.weather} morning the {s.thing} was gone.",
                 f"But one {s.weather} day the {s.thing} was lost.",
                 f"On a {s.weather} evening {s.name} could not find the {s.thing}."]),
            one([f"{s.name} looked everywhere and began to cry.",
                 f"{s.name} was very sad and did not know what to do.",
                 f"\"Oh no! Where is my {s.thing}?\" said {s.name}."]),
            one([f"Then {helper_article} {s.helper_animal} named {s.helper} came by.",
                 f"Just then {s.helper} the {s.helper_animal} came along.",
                 f"A friend named {s.helper}, {helper_article} {s.helper_animal}, heard it."]),
            one([f"\"I will help you,\" said {s.helper}.",
                 f"\"Do not be sad. We will look together,\" said {s.helper}.",
                 f"\"Let us look for it,\" said {s.helper} the {s.helper_animal}."]),
            one([f"They looked and looked, and at last they found the {s.color} {s.thing} {s.hidden}.",
                 f"They walked a long way, and {s.hidden} they saw the {s.thing}.",
                 f"After a while {s.helper} found the {s.thing} {s.hidden}."]),
            one([f"{s.name} was so happy that they danced and ate {s.food} together.",
                 f"\"Thank you, {s.helper}!\" said {s.name}, and they shared {s.food}.",
                 f"{s.name} gave {s.helper} some {s.food} to say thank you."]),
            one([f"From that day on {s.name} and {s.helper} were good friends.",
                 "And they were friends from then on.",
                 f"{s.name} never lost the {s.thing} again."]),
        ])

    def request(self, random):
        article = "an" if self.animal[0] in "aeiou" else "a"
        thing_article = "an" if self.color[0] in "aeiou" else "a"
        return random.choice([
            f"Tell me a story about {article} {self.animal} named {self.name} and {thing_article} {self.color} {self.thing}.",
            f"Tell me a story about {article} {self.animal} and a {self.thing}.",
            f"Please tell a story about {self.name} the {self.animal}.",
        ])

    def questions(self, random, count):
        """[question, answer] pairs whose answers the story tells, whichever sentences were chosen."""
        s = self
        all_of_them = [
            (f"What did {s.name} lose?", f"{s.name} lost the {s.color} {s.thing}."),
            (f"What color was the {s.thing}?", f"The {s.thing} was {s.color}."),
            (f"Who helped {s.name}?", f"{s.helper} the {s.helper_animal} helped {s.name}."),
            (f"What animal was {s.name}?", f"{s.name} was {'an' if s.animal[0] in 'aeiou' else 'a'} {s.animal}."),
            (f"What animal was {s.helper}?",
             f"{s.helper} was {'an' if s.helper_animal[0] in 'aeiou' else 'a'} {s.helper_animal}."),
            (f"Where was the {s.thing}?", f"The {s.thing} was {s.hidden}."),
            ("What did they eat?", f"They ate {s.food}."),
            ("How was the weather?", f"It was {s.weather}."),
        ]
        return random.sample(all_of_them, count)


def conversation(random):
    """[(role, text)]: a request, its story, and some questions about it; or a story that the user tells, and questions."""
    story = Story(random)
    told = story.tell(random)
    questions = story.questions(random, random.randint(2, 8))
    if random.random() < 0.5:
        turns = [("user", story.request(random)), ("assistant", told)]
    else:
        first, answer = questions.pop(0)
        turns = [("user", f"{told} {first}"), ("assistant", answer)]
    for question, answer in questions:
        turns += [("user", question), ("assistant", answer)]
    return turns
