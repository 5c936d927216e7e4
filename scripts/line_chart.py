"""A chart of points or lines in SVG, for scripts that show how one number goes with another."""

import math

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 70, 30, 30, 50
COLOURS = ["#2563eb", "#c2410c", "#15803d", "#7e22ce", "#0e7490", "#be185d", "#a16207", "#4b5563"]
TICKS = 9
LEGEND = 170  # width


def round_numbers(low, high):
    """Some four to nine numbers from low to high that people count by."""
    rough = (high - low) / (TICKS - 1)
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= 0.999 * rough)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def draw(file, x_label, y_label, series, lines=True, from_zero=False, by_powers=False):
    """series: {name: [(x, y), ...]}, whose names are a legend or, without lines, above the highest points. The axis of x begins at 0 or,
    by_powers, has powers of ten at equal distances; that of y begins a little below its least number unless from_zero."""
    points = [point for each in series.values() for point in each]
    scale = math.log10 if by_powers else float
    first_x = min(scale(x) for x, _ in points) - 0.2 if by_powers else 0
    last_x = max(scale(x) for x, _ in points) + (0.2 if by_powers else 0) or 1
    low, high = min(y for _, y in points), max(y for _, y in points)
    margin = (high - low) / 10 or 0.01
    # Room for a legend above the lines.
    low, high = 0 if from_zero else low - margin, high + margin * (2 if lines else 1)

    def across(x):
        return LEFT + (WIDTH - LEFT - RIGHT) * (scale(x) - first_x) / ((last_x - first_x) or 1)

    def down(y):
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (y - low) / (high - low)

    # At the right, above or below, where fewer points are.
    room = 16 * len(series)
    right = [down(y) for x, y in points if across(x) > WIDTH - RIGHT - LEGEND]
    at_top = sum(y < TOP + room for y in right) <= sum(y > HEIGHT - BOTTOM - room for y in right)
    legend = TOP if at_top else HEIGHT - BOTTOM - room
    marks = []
    for i, (name, each) in enumerate(series.items()):
        colour = COLOURS[(i if lines else 0) % len(COLOURS)]
        if lines:
            path = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in each)
            marks.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
            marks.append(f'<text x="{WIDTH - RIGHT}" y="{legend + 16 * i}" text-anchor="end" fill="{colour}">{name}</text>')
        marks += [f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="4" fill="{colour}" fill-opacity="0.6"/>' for x, y in each]
        if not lines:
            x, y = max(each, key=lambda point: point[1])
            anchor = "start" if across(x) < LEFT + 80 else "end" if across(x) > WIDTH - 100 else "middle"
            marks.append(f'<text x="{across(x):.1f}" y="{down(y) - 9:.1f}" text-anchor="{anchor}">{name}</text>')
    for y in round_numbers(low, high):
        marks.append(f'<text x="{LEFT - 8}" y="{down(y) + 4:.1f}" text-anchor="end">{y:.4g}</text>')
    factors = (1, 2, 5) if last_x - first_x < 4 else (1,)  # as many as have room
    powers = range(math.floor(first_x), math.ceil(last_x) + 1) if by_powers else []
    tens = [factor * 10.0**power for power in powers for factor in factors]
    for x in [x for x in tens if first_x <= scale(x) <= last_x] if by_powers else round_numbers(first_x, last_x):
        marks.append(f'<text x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:,.4g}</text>' if x < 1e4 else
                     f'<text x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:,.0f}</text>')
    file.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12" fill="#1c2430">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
        f'<path d="M{LEFT} {TOP - 10}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT + 10}" fill="none" stroke="#98a2b3"/>{"".join(marks)}'
        f'<text x="{(WIDTH + LEFT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{x_label}</text>'
        f'<text x="16" y="{HEIGHT / 2 - 10}" text-anchor="middle" transform="rotate(-90 16 {HEIGHT / 2 - 10})">{y_label}</text></svg>\n')
