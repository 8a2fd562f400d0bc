"""Made-up news with subjects, some frequent and most rare, whose words change at one place: something to look at."""

import random
from collections.abc import Iterator
from typing import Any

SUBJECTS = {
    "grain": "wheat maize harvest bushels tonnes silo kansas drought export acreage millers flour",
    "crude": "oil barrel opec output refinery brent pipeline tanker drilling rig gasoline quota",
    "money market": "bank liquidity bills rate overnight central reserves funds dealers repo bundesbank swap",
    "trade": "tariff exports imports deficit surplus dispute treaty ministers quota customs goods sanctions",
    "shipping": "vessel port cargo strike dockers freight tonnage strait crew container harbour pilot",
    "interest": "prime lending cut raise basis points mortgage discount yield borrowers inflation monetary",
    "coffee": "beans robusta arabica growers quota brazil colombia roasters bags harvest frost stocks",
    "sugar": "beet cane refined raw white tender intervention rebate mills crop sweetener syrup",
    "gold": "ounce bullion mine ore troy assay vein metals jewellery reserves smelter karat",
    "jobs and wages": "unemployment payrolls seasonal workers hiring layoffs union wages benefits survey",
    "cattle": "feedlot ranch beef slaughter herd heifers steers hides prices pasture cattlemen weights",
    "cotton": "bales lint gin spinners staple yarn textile planting boll upland mills picking",
    "copper": "cathode smelter wire tonnes mine ore strike codelco zambia london grade warehouse",
    "natural gas": "pipeline cubic reserves lng terminal utilities winter storage wells regasification basin supply",
    "cocoa": "buffer stock ivory ghana beans butter processors grindings council daily pods fermentation",
    "rubber": "latex sheet malaysia plantation tyre tappers buffer smoked natural thailand kilos elastic",
    "palm oil": "crude olein malaysia refiners plantation tonnes kernel edible ringgit export mill fronds",
    "tin": "council buffer ingots penang cartel smelting tonnes malaysia bolivia cassiterite plate quota",
    "orange juice": "frozen concentrate florida frost groves boxes brix citrus futures gallons pulp squeezed",
    "wool": "fleece merino shearing auction micron greasy corporation australia bales reserve sheep tops",
}
LATER = "outlook digital climate platform carbon index futures algorithm satellite forecast battery hydrogen credit"
COMMON = "the of said in to and year market week new prices company government report month officials analysts"


def news(n: int, seed: int = 11, change: float = 0.6) -> Iterator[dict[str, Any]]:
    """``n`` labelled texts; after the part ``change`` of them half of a subject's words are other ones."""
    rng = random.Random(seed)
    subjects = list(SUBJECTS)
    later = {subject: rng.sample(LATER.split(), 6) for subject in subjects}
    for at in range(n):
        subject = subjects[min(int(rng.expovariate(0.28)), len(subjects) - 1)]
        words = SUBJECTS[subject].split()
        if at > change * n:
            words = words[:3] + later[subject]
        text = rng.sample(words, rng.randint(2, 4)) + rng.choices(COMMON.split(), k=7)
        if rng.random() < 0.25:
            text.append(rng.choice(SUBJECTS[rng.choice(subjects)].split()))
        rng.shuffle(text)
        yield {"text": " ".join(text), "labels": [subject]}
