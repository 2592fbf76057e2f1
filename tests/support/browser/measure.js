// Return what is wrong with a page as it is now: a list of texts. `acts` are those that it must show.
async ({acts, colours}) => {
    document.getAnimations().forEach(animation => animation.finish());
    const faults = new Set(), content = document.querySelector("#content") ?? document.body;
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const colors = new Map();
    const rgba = color => {
        if (!colors.has(color)) {
            canvas.clearRect(0, 0, 1, 1);
            canvas.fillStyle = color;
            canvas.fillRect(0, 0, 1, 1);
            const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
            colors.set(color, [r, g, b, a / 255]);
        }
        return colors.get(color);
    };
    const over = ([r, g, b, a], below) => [...[r, g, b].map((part, i) => part * a + below[i] * (1 - a)), 1];
    const background = element => {
        const own = rgba(getComputedStyle(element).backgroundColor);
        if (own[3] === 1) return own;
        return over(own, element.parentElement ? background(element.parentElement) : rgba("Canvas"));
    };
    const luminance = color => {
        const [r, g, b] = color.map(part => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ratio = (one, other) => {
        const [less, more] = [luminance(one), luminance(other)].sort((a, b) => a - b);
        return (more + 0.05) / (less + 0.05);
    };
    const isSeen = element => element.checkVisibility({visibilityProperty: true, opacityProperty: true})
        && !element.closest("title, option, script, style") && !hidden(element);
    const hidden = element => {  // for screen readers only
        for (let at = element; at && at !== content; at = at.parentElement) {
            const style = getComputedStyle(at);
            const isClipped = style.clip === "rect(0px, 0px, 0px, 0px)" || at.clientWidth <= 1;
            if (style.clipPath !== "none" || (style.position === "absolute" && isClipped)) return true;
        }
        return false;
    };
    const named = element => `<${element.tagName.toLowerCase()} ${element.getAttribute("class") ?? ""}> ${element.textContent.trim().slice(0, 50)}`;

    if (document.documentElement.scrollWidth > innerWidth) faults.add(`the page has ${document.documentElement.scrollWidth} px`);
    for (const element of content.querySelectorAll("*")) {
        if (element.namespaceURI.endsWith("svg") || ["INPUT", "SELECT", "OPTION", "TEXTAREA"].includes(element.tagName) || !isSeen(element)) continue;
        const {overflowX, textOverflow} = getComputedStyle(element);
        const isCut = element.clientWidth > 1 && element.scrollWidth > element.clientWidth + 1 && overflowX !== "visible";
        const isSaid = textOverflow === "ellipsis" && (element.closest("[title]") ?? element.querySelector("[title]"));
        if (isCut && !isSaid) faults.add(`cut: ${named(element)}`);
    }

    const texts = [];
    const walker = document.createTreeWalker(content, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const element = node.parentElement;
        if (!node.data.trim() || !isSeen(element)) continue;
        const range = document.createRange();
        const isSvg = element.namespaceURI.endsWith("svg");
        const early = element.closest("[title]") || element.querySelector("[title]");
        for (const {0: word, index} of isSvg ? [] : node.data.matchAll(/[^\s\-–·…]+/g)) {
            range.setStart(node, index);
            range.setEnd(node, index + word.length);
            const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
            if (word.length <= 20 && tops.size > 1) faults.add(`broken: ${word} in ${named(element)}`);
        }
        range.selectNodeContents(node);
        for (const box of range.getClientRects()) {
            if (box.width < 2 || box.height < 2) continue;
            if (!early && (box.right > innerWidth + 1 || box.left < -1)) faults.add(`outside: ${named(element)}`);
            const cell = element.closest("#result_list tbody th, .zklock-holder, td, th")?.getBoundingClientRect();
            const [left, right] = early && cell ? [Math.max(box.left, cell.left), Math.min(box.right, cell.right)] : [box.left, box.right];
            texts.push({element, left, right, top: box.top + box.height * 0.2, bottom: box.bottom - box.height * 0.2});
        }
        if (colours) {
            const style = getComputedStyle(element), below = background(isSvg ? element.closest("svg").parentElement : element);
            const isLarge = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.6 && style.fontWeight >= 600);
            const found = ratio(over(rgba(isSvg ? style.fill : style.color), below), below);
            const isIcon = style.fontFamily.includes("Symbols");
            if (!isIcon && found < (isLarge ? 3 : 4.5) && !element.closest(":disabled")) faults.add(`contrast ${found.toFixed(2)}: ${named(element)}`);
        }
    }
    for (const element of content.querySelectorAll(".object-tools a, a.button, input[type=submit], button")) {
        if (isSeen(element)) texts.push({element, ...element.getBoundingClientRect().toJSON()});
    }
    texts.sort((one, other) => one.top - other.top);
    texts.forEach((one, i) => {
        for (let j = i + 1; j < texts.length && texts[j].top < one.bottom; j++) {
            const other = texts[j], wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
            if (wide > 2 && !one.element.contains(other.element) && !other.element.contains(one.element)) faults.add(`overlap: ${named(one.element)} | ${named(other.element)}`);
        }
    });

    const shown = [...content.querySelectorAll(":is(a[href], button, input, select, summary):not(thead *)")].filter(isSeen)
        .map(act => act.name ?? act.getAttribute("href") ?? act.textContent.trim());
    for (const act of acts ?? []) if (!shown.includes(act)) faults.add(`gone: ${act}`);

    const alike = new Set();  // what has the same rules of style: one of each kind is enough
    if (colours) for (const act of content.querySelectorAll(":is(a[href], button, input, select, summary):not(thead *)")) {
        if (!isSeen(act) || act.disabled) continue;
        const kind = [act, act.parentElement, act.parentElement.parentElement].map(part => `${part.tagName} ${part.type ?? ""} ${part.getAttribute("class")}`).join();
        if (alike.has(kind)) continue;
        alike.add(kind);
        act.focus({preventScroll: true});
        act.getAnimations().forEach(animation => animation.finish());
        const style = getComputedStyle(act), around = background(act.parentElement);
        const ring = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) ? ratio(over(rgba(style.outlineColor), around), around) : 0;
        const border = ratio(over(rgba(style.borderTopColor), around), around);  // Django's fields have a border instead
        if (Math.max(ring, act.matches("input, select") ? border : 0) < 3) faults.add(`ring ${ring.toFixed(2)}: ${named(act)}`);
        act.blur();
    }
    return {faults: [...faults], shown};
}
