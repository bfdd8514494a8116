"""rapidocr, with its own models (text detection, direction, recognition): pages of text as drawn by
PIL, in several sizes, some upside down or tilted.
"""

import numpy as np
from harness import SENTENCES, measure
from PIL import Image, ImageDraw, ImageFont
from rapidocr import RapidOCR


def page(number: int) -> np.ndarray:
    width, height = 480 + 80 * (number % 4), 320 + 64 * (number % 3)
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(16 + 4 * (number % 4))
    for line in range(5):
        words = SENTENCES[7 * number + line].split()[:5]
        draw.text((20, 20 + 50 * line), " ".join(words), "black", font)
    return np.asarray(image.rotate((0, 180, 0, 4)[number % 4], fillcolor="white"))


PAGES = [page(number) for number in range(8)]


def work(ocr: RapidOCR) -> dict:
    found = map(ocr, PAGES)
    return {f"page {i}": (each.txts, each.scores, each.boxes) for i, each in enumerate(found)}


measure(lambda: RapidOCR(params={"Global.log_level": "error"}), work)
