"""Choose the limit over which `sentiment` warns that a text is unlike those that it knows.

    python results/sentiment/unlike.py DATA

A text of n scored bytes is unlike them if it has more than bits + 8/√n bits per character. For
each limit it prints the shares over it, in %: of up to 1,000 texts of each validation set, of our
32 sentences in other languages, and of our lines of code.
"""

import math
import sys
from pathlib import Path

import numpy as np
import texts

import mlstm_jax

SHORT = 8.0


def _lines(text: str) -> list[str]:
    return text.strip().splitlines()


LANGUAGES = _lines("""
Das Essen war ausgezeichnet, aber der Service war leider sehr langsam.
Ich werde dieses Produkt bestimmt nicht noch einmal kaufen.
Le film était beaucoup trop long et je me suis ennuyé du début à la fin.
Une très belle surprise, je le recommande à tout le monde.
La comida estaba deliciosa y el personal fue muy amable.
No volvería a comprar este teléfono, dejó de funcionar en una semana.
Il libro è noioso e i personaggi non sono credibili.
O hotel era limpo, mas o barulho da rua não nos deixou dormir.
Het was een prachtige voorstelling met geweldige muziek.
Filmen var kjedelig og altfor lang.
Jag är mycket nöjd med köpet och leveransen.
Elokuva oli hauska ja näyttelijät erinomaisia.
Ta książka jest świetna, przeczytałem ją w jeden dzień.
Tento výrobek se rozbil po dvou dnech.
A film nagyon unalmas volt, nem ajánlom senkinek.
Bu telefonu çok beğendim, herkese tavsiye ederim.
Фильм был скучным, и я ушёл с середины.
Дуже смачна їжа і приємна атмосфера.
Η ταινία ήταν υπέροχη από την αρχή μέχρι το τέλος.
המסעדה הייתה יקרה והאוכל לא טעים.
الخدمة كانت سيئة جدا ولن أعود مرة أخرى.
یہ کتاب بہت دلچسپ ہے اور سب کو پڑھنی چاہیے۔
यह फिल्म बहुत अच्छी है और सभी को देखनी चाहिए।
এই খাবারটি খুবই সুস্বাদু ছিল।
อาหารอร่อยมากและพนักงานบริการดี
Phim rất hay và diễn viên diễn rất tốt.
Filmnya sangat membosankan dan terlalu panjang.
这家餐厅的服务很差，我不会再来了。
この映画はとても面白くて、また見たいです。
이 제품은 정말 좋아요, 다시 구매할 거예요.
Ang pagkain ay masarap at mabait ang mga tauhan.
Filamu hii ilikuwa nzuri sana na ya kusisimua.
""")
CODE = _lines("""
for (size_t i = 0; i < n; ++i) { sum += x[i] * w[i]; }
return sum(int(x) for x in argv[1:] if x.isdigit())
SELECT name, COUNT(*) FROM users GROUP BY name HAVING COUNT(*) > 1;
<div class="row"><a href="/index.html" id="home">x</a></div>
{"id": 17, "tags": ["a", "b"], "size": 1.5e-3, "ok": null}
E1129 12:57:46.855570 10926 client.cc:1622] INVALID_ARGUMENT: 0x7f3a
git rebase --onto main~3 feature && make -j8 CC=clang
""")


def main(data: Path) -> None:
    """Print a line for each limit."""
    model = mlstm_jax.load("sentiment")
    sets = {}
    for name, some in texts.validation(data).items():
        sets[name] = [text.text for text in some[: 100 if name == "imdb" else 1_000]]
    sets |= {"languages": LANGUAGES, "code": CODE}
    needed = {}
    for name, some in sets.items():
        bits = []
        for text in some:
            scores = model.log_probabilities(text)
            bits.append(-scores.mean() / math.log(2) - SHORT / math.sqrt(len(scores)))
        needed[name] = np.array(bits)
    for limit in np.arange(1.8, 4.1, 0.2):
        over = {name: round(100 * (bits_N > limit).mean(), 2) for name, bits_N in needed.items()}
        print(f"{limit:.1f}", over)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
